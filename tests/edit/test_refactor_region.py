"""Targets to regions: symbols, lines, mentions, other languages, and what is said when it is unclear."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.edit.region import MAX_LINES, Target, locate_region, parse_target
from fulgur.errors import FulgurError, UsageError
from fulgur.workspace.diff import unified

PYTHON = '''\
"""Shop."""

import os

LIMIT = 10


@cached
def load(path):
    first_row = path
    return first_row


class Store:
    def load(self):
        return LIMIT

    def save(self):
        total_amount = 1
        return total_amount
'''
LONG = PYTHON + "\n" + "".join(f"def filler_{i}():\n    pass\n\n\n" for i in range(30))
SCRIPT = """\
const limit = 3;

function load(path) {
  if (path) {
    return "}";
  }
  return null;
}

class Store {
  save() {
    return limit;
  }
}
"""


def region(text: str, target: Target, instruction: str = "") -> str:
    found = locate_region(text, target, instruction)
    assert text[found.start : found.end] == found.text and found.text in text
    assert (found.above + found.text + found.below) in text
    return found.text


def test_targets(tmp_path: Path) -> None:
    assert parse_target("a.py") == Target(Path("a.py"))
    assert parse_target("a.py:load") == Target(Path("a.py"), "load")
    assert parse_target("a.py:Store.save") == Target(Path("a.py"), "Store.save")
    assert parse_target("a.py:3-9") == Target(Path("a.py"), None, (3, 9))
    assert parse_target("a.py:7", tmp_path) == Target(tmp_path / "a.py", None, (7, 7))
    (tmp_path / "odd:name").write_text("")
    assert parse_target("odd:name", tmp_path) == Target(tmp_path / "odd:name")
    for wrong in ("a.py:9-3", "a.py:0-2", "a.py:a b"):
        with pytest.raises(UsageError):
            parse_target(wrong)


def test_python_symbols_with_decorators_methods_and_constants() -> None:
    path = Path("shop.py")
    assert region(PYTHON, Target(path, "load")).startswith("@cached\ndef load(path):")
    assert region(PYTHON, Target(path, "Store.load")) == "    def load(self):\n        return LIMIT\n"
    assert region(PYTHON, Target(path, "save")).startswith("    def save(self):")
    assert region(PYTHON, Target(path, "LIMIT")) == "LIMIT = 10\n"
    with pytest.raises(FulgurError, match="has no nothing"):
        locate_region(PYTHON, Target(path, "nothing"))
    with pytest.raises(FulgurError) as misspelt:
        locate_region("def load(): ...\n" + "".join(f"def f{n}(): ...\n" for n in range(20)), Target(path, "lod"))
    assert misspelt.value.hint == "Did you mean load?"


def test_definitions_that_belong_together_are_one_symbol() -> None:
    text = (
        "@overload\ndef first(xs: int): ...\n@overload\ndef first(xs: str): ...\ndef first(xs):\n    return xs\n\n\n"
        "class A:\n    @property\n    def b(self): ...\n\n    @b.setter\n    def b(self, v): ...\n\n\n"
        "if x:\n    def g(): ...\nelse:\n    def g(): ...\n"
    )
    for symbol, lines in (("first", (1, 6)), ("A.b", (10, 14))):
        region = locate_region(text, Target(Path("a.py"), symbol))
        assert (region.first_line, region.last_line) == lines
    with pytest.raises(FulgurError, match="has several g") as caught:
        locate_region(text, Target(Path("a.py"), "g"))
    assert caught.value.hint == "Name its lines: a.py:18-18."


def test_lines_and_the_statement_around_a_line() -> None:
    path = Path("shop.py")
    assert region(PYTHON, Target(path, None, (3, 5))) == "import os\n\nLIMIT = 10\n"
    assert region(PYTHON, Target(path, None, (10, 10))).startswith("@cached")
    assert region(PYTHON, Target(path, None, (5, 5))) == "LIMIT = 10\n"
    with pytest.raises(FulgurError, match="there is no line 99"):
        locate_region(PYTHON, Target(path, None, (99, 99)))


def test_a_whole_short_file_and_the_part_of_a_long_one_that_is_mentioned() -> None:
    path = Path("shop.py")
    assert region(PYTHON, Target(path)) == PYTHON
    assert region(LONG, Target(path), "add a docstring to filler_7").startswith("def filler_7")
    assert region(LONG, Target(path), "rename total_amount to total").startswith("    def save")
    assert region(LONG, Target(path), "sort the imports") == "import os\n"
    with pytest.raises(FulgurError, match="which part"):
        locate_region(LONG, Target(path), "make it better")


def test_too_large_regions_are_refused() -> None:
    with pytest.raises(FulgurError, match="too many"):
        locate_region(LONG, Target(Path("shop.py"), None, (1, MAX_LINES + 1)))


def test_other_languages_by_braces() -> None:
    path = Path("shop.js")
    assert region(SCRIPT, Target(path, "load")).startswith("function load") and region(
        SCRIPT, Target(path, "load")
    ).endswith("}\n")
    assert region(SCRIPT, Target(path, "limit")) == "const limit = 3;\n"
    assert region(SCRIPT, Target(path, "save")) == "  save() {\n    return limit;\n  }\n"
    with pytest.raises(FulgurError, match="has no nothing"):
        locate_region(SCRIPT, Target(path, "nothing"))


def test_languages_without_a_grammar_by_indentation_and_brackets() -> None:
    package = '{\n  "name": "a",\n  "scripts": {\n    "test": "echo }"\n  },\n  "version": "1"\n}\n'
    assert region(package, Target(Path("p.json"), "scripts")) == '  "scripts": {\n    "test": "echo }"\n  },\n'
    assert region(package, Target(Path("p.json"), "name")) == '  "name": "a",\n'
    workflow = "on: push\njobs:\n  test:\n    run: make\n\nname: ci\n"
    assert region(workflow, Target(Path("ci.yml"), "jobs")) == "jobs:\n  test:\n    run: make\n"


def test_diff_with_and_without_colour() -> None:
    assert unified("a\n", "a\n", "x") == ""
    plain = unified("a\nb\n", "a\nc", "x.py")
    assert plain.splitlines()[:2] == ["--- a/x.py", "+++ b/x.py"]
    assert unified("", "a\n", "x.py", new=True).startswith("--- /dev/null\n+++ b/x.py\n")  # as `git apply` needs it
    assert "-b\n" in plain and "+c\n\\ No newline at end of file\n" in plain


def test_a_function_of_a_file_that_does_not_parse_is_found_whole() -> None:
    body = "    result = f(0)\n\n    for x in (1,):\n        result += x\n    return result\n"
    text = "def total(\n    prices,\n):\n" + body + "\n\nBROKEN =\n"
    found = locate_region(text, Target(Path("shop.py"), "total"))
    assert found.text == text[: text.index("\n\nBROKEN")]


def test_a_named_function_is_preferred_to_the_whole_of_a_short_file() -> None:
    text = "def load(path):\n    return path\n\n\ndef total(prices):\n    return sum(prices)\n"
    found = locate_region(text, Target(Path("shop.py")), "add type hints to total")
    assert found.text == text[text.index("def total") :]
    assert locate_region(text, Target(Path("shop.py")), "add type hints").text == text
