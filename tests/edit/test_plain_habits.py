"""What linters and reviewers write, the code as it should read, complaints and questions: read, or left to a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.edit.editor import Proposal, locate, propose
from fulgur.edit.plain import core, read
from fulgur.edit.plain.steps import Steps
from fulgur.edit.refactor import EVERYWHERE
from fulgur.edit.refactor.meaning import MEANINGS, describe
from fulgur.edit.region import Region, parse_target
from fulgur.errors import FulgurError
from fulgur.text.edit_format import Call
from tests.edit.test_plain_more import CODE as MORE_CODE
from tests.edit.test_plain_more import READ as MORE

CODE = '''\
import os, sys
from collections import OrderedDict


def load(path, format, l=1, legacy=None, strict=False):
    """Load it."""
    folder = "."
    limit = 3
    cache = OrderedDict()
    text = float(path.read())
    with open(path) as f:
        for line in f.readlines():
            warn(line, stacklevel=2, category=cache)
    for k, v in cache.items():
        print(k, v)
    try:
        close(format)
    except (OSError, ValueError) as e:
        pass
    if isinstance(path, str) or isinstance(path, bytes):
        limit = legacy and int or str
    while 1:
        f.close()
        if (format):
            return (limit)
    name = path or ""
    out = fetch(name or "")
    ptr = out.first
    return ptr
'''
FUNCTION = CODE[CODE.index("def load") :]
HINTED = "from typing import Optional\n\n\ndef f(a: Optional[str], b: Optional[int]) -> Optional[str]: ...\n"
POINT = """\
class Point(Base):
    def __init__(self, x, y, *more):
        self.x, self._y = x, y
        self.more = more

    def __eq__(self, other):
        return self.x == other.x
"""
PLAIN = POINT.replace("(Base)", "").replace(", *more", "").replace("        self.more = more\n", "")
METHOD = "    def f(self, a):\n        return [a]\n"
SAME = """\
def f(a, b, mode=None):
    mode = mode if mode else "r"
    total = 0
    for price in a:
        total = total + price
    if a == 1 or a == 2:
        x = 1
    else:
        x = 2
    if b == None or mode == None:
        x = 3
    out = []
    y = g(a)
    for item in b:
        out.append(item.name)
    return x
"""

READ: list[tuple[str, str, str | None]] = [
    # what linters say
    ("use a single isinstance call with a tuple", FUNCTION, "merge_isinstance"),
    ("merge the two isinstance checks", FUNCTION, "merge_isinstance"),
    ("ternary instead of and/or", FUNCTION, "and_or"),
    ("use a ternary for limit", FUNCTION, "and_or"),
    ("use a ternary for text", FUNCTION, "use_ternary"),  # of an if and an else, which are not there
    ("while True instead of while 1", FUNCTION, "while_true"),
    ("while 1 -> while True", FUNCTION, "while_true"),
    ("use while True", METHOD, None),
    ("drop the unused `as e`", FUNCTION, "drop_exception_name e"),
    ("remove as err", FUNCTION, None),
    ("iterate over the file directly, no readlines()", FUNCTION, "iterate_file"),
    ("iterate over f directly instead of readlines", FUNCTION, "iterate_file"),
    ("iterate over path directly instead of readlines", FUNCTION, None),
    ("no readlines", FUNCTION, "iterate_file"),
    ("one import per line", CODE, "split_imports"),
    ("split the `import os, sys` line", CODE, "split_imports"),
    ("split import os, re", CODE, None),
    ("split import os, sys", CODE + "import re, json\n", None),
    ("bump stacklevel to 3", FUNCTION, "set_keyword warn stacklevel 3"),
    ("set stacklevel to depth", FUNCTION, None),
    ("set category to 3", FUNCTION, None),  # a variable is passed so far
    ("set end to ','", "def f(a):\n    print(a, end='')\n    return {'end': 1}\n", None),  # which of the two?
    ("bump legacy to 3", "def f(legacy):\n    g(legacy=1)\n", None),
    ("make folder a parameter", FUNCTION, "variable_to_parameter folder"),
    ("folder should be a parameter instead of hardcoded", FUNCTION, "variable_to_parameter folder"),
    ("make folder an argument, default '.'", FUNCTION, "variable_to_parameter folder"),
    ("make folder an argument, default '/'", FUNCTION, None),
    ("make limit a parameter", FUNCTION, "variable_to_parameter limit"),  # set twice: the refactoring says so
    ("make format a parameter", FUNCTION, None),
    ("fix the spelling of recieve", "def f():\n    # recieve\n    receive()\n", "replace_text recieve receive"),
    ("fix the typo in recieve", "def f():\n    # recieve\n    receive()\n", "replace_text recieve receive"),
    ("fix the typo in message", "def f(message):\n    # messages\n    pass\n", None),
    ("fix the typo in comment", "def f():\n    # comment\n    return 'comments'\n", None),
    ("drop the parens around format", FUNCTION, "replace_text if (format) if format"),
    ("remove the parens around limit", FUNCTION, "replace_text return (limit) return limit"),
    ("remove the parens around path", FUNCTION, None),  # those of a call
    ('`name or ""` is redundant, just name', FUNCTION, 'replace_text name or "" name'),
    ("`out` is redundant, use ptr", FUNCTION, None),
    ("use a plain if instead of elif after the return", FUNCTION, None),
    ("make it static", METHOD, "make_static"),
    ("isinstance instead of type ==", FUNCTION, "use_isinstance"),
    ("strict: True by default", FUNCTION, "change_default strict True"),
    ("strict on by default", FUNCTION, "change_default strict True"),
    ("type hints: path is Path, format str, returns str", FUNCTION, "add_type_hints path: Path, format: str -> str"),
    ("type hints: path is Path, returns nothing", FUNCTION, None),  # it returns something
    ("types: path is Path, mode str", FUNCTION, None),
    ("type hints: a is int, returns nothing", "def f(a):\n    g(a)\n", "add_type_hints a: int -> None"),
    # methods that follow from attributes
    ("add a __repr__ showing x and y", POINT, "add_method Point __repr__ x _y"),
    ("add a __repr__ showing x and z", POINT, None),
    ("add a __repr__", POINT, None),  # the base may have more
    ("add a __repr__", POINT.replace("(Base)", ""), None),  # it takes any number of things
    ("add a repr", PLAIN, "add_method Point __repr__ x _y"),
    ("add __hash__", PLAIN, "add_method Point __hash__ x"),
    ("add a __hash__", PLAIN.replace("__eq__", "same"), None),
    ("add __slots__", PLAIN, "add_method Point __slots__ x _y"),
    ("add a __repr__", METHOD, None),
    # a type for a type
    ("Optional[str] should be str | None", HINTED, "replace_text Optional[str] str | None"),
    ("Optional[str] -> str | None", HINTED, "replace_text Optional[str] str | None"),
    ("Optional[str] -> str | None", HINTED.replace("Optional[", "typing.Optional["), None),
    ("Optional[bytes] -> bytes | None", HINTED, None),
    # the code as it should read
    ("total += price", SAME, "replace_text total = total + price total += price"),
    ("a in (1, 2)", SAME, "replace_text if a == 1 or a == 2: if a in (1, 2):"),
    ("use `if a in (1, 2)`", SAME, "replace_text if a == 1 or a == 2: if a in (1, 2):"),
    ("why not mode or 'r'?", SAME, 'replace_text mode = mode if mode else "r" mode = mode or "r"'),
    ("b is None", SAME, "replace_text if b == None or mode == None: if b is None or mode == None:"),
    ("x is None", SAME, None),
    ("total += price for x", SAME, None),
    ("total -= price", SAME, None),
    ("a in (1, 3)", SAME, None),
    ("use len(b)", SAME, None),
    # only what the words spell out comes of them
    (
        "use conf.get('k', 0)",
        "def f(conf):\n    if 'k' in conf:\n        a = conf['k']\n    else:\n        a = 1\n",
        None,
    ),
    (
        "use conf.get",
        "def f(conf):\n    if 'k' in conf:\n        a = conf['k']\n    else:\n        a = 1\n",
        "use_dict_get",
    ),
    ("a in [1, 2]", SAME, "use_in"),
    (
        "return 1 if not a else 2",
        "def f(a):\n    if a:\n        return 1\n    return 2\n",
        "only_return 1 if not a else 2",
    ),
    ("bump size to 3", "def f(size):\n    g(size)\n", None),
    ("%s_log -> fstring", "def f(a):\n    return '%s_log' % a\n", None),  # how to write it, and not what
    ("%s_log -> f-string", "def f(a):\n    return '%s_log' % a\n", None),
    ("%s log -> log", "def f(a):\n    return '%s log' % a\n", None),  # nothing would take the value any more
    ("%s log -> %s line", "def f(a):\n    return '%s log' % a\n", "replace_text %s log %s line"),
    ("stream=get('stream') is enough", "def f():\n    g(\n        stream=get('stream', None),\n    )\n", None),
    ("set check to True", "def f(a):\n    return g(\n        check=a.get('check', False)\n    )\n", None),
    ("bump LIMIT to 3", "LIMIT: int = 2\n", "set_value LIMIT 3"),
    ("out = [n for n in b]", "def f(b):\n    out = b\n    return out\n", "set_value out [n for n in b]"),
    # complaints and questions
    ("what if path is empty? return ''", FUNCTION, "return_if not path ''"),
    ("what happens when path is None? raise ValueError", FUNCTION, "guard_none path raise ValueError"),
    ("what if the disk is full? raise OSError", FUNCTION, None),
    ("guard against empty path, return ''", FUNCTION, "return_if not path ''"),
    ("OrderedDict isn't needed anymore, use a plain dict", FUNCTION, "replace_text OrderedDict dict"),
    ("OrderedDict is needed, use a plain dict", FUNCTION, None),
    ("path isn't needed, use format", FUNCTION, None),  # not a class for another
    ("float() isn't needed in py3, remove it", FUNCTION, "unwrap_call float"),
    ("f.close() is redundant, drop it", FUNCTION, "delete_statement f.close()"),
    ("f.close() isn't redundant, drop it", FUNCTION, None),
    ("unused `as e`, drop it", FUNCTION, "drop_exception_name e"),
    ("simplify: while True", FUNCTION, "while_true"),
    ("don't shadow the builtin format, call it fmt", FUNCTION, "rename format fmt"),
    ("stop shadowing format, use fmt", FUNCTION, "rename format fmt"),
    ("avoid overriding path, use strict", FUNCTION, None),
    ("don't hide the error, use raise", FUNCTION, None),
    ("l is ambiguous, call it size", FUNCTION, "rename l size"),
    ("return the pointer directly, no ptr variable", FUNCTION, "return_directly ptr"),
    ("return name directly, no ptr variable", FUNCTION, None),  # another value
    ("the docstring is useless, make it 'Read a file.'", FUNCTION, "set_docstring Read a file."),
    ("drop the silly print", FUNCTION, "remove_prints"),
    ("remove the trailing print", FUNCTION, None),  # one of them, and not what somebody thinks of it
    ("remove the ugly comment", "def f(ugly):\n    # a\n    return 1  # ugly\n", "remove_comment one ugly"),
    # two names at once
    ("k, v -> key, value", FUNCTION, "rename k key, rename v value"),
    ("rename k to key, v to value", FUNCTION, "rename k key, rename v value"),
    ("k -> key and v -> value", FUNCTION, "rename k key, rename v value"),
    ("k, v -> v, k", FUNCTION, "replace_text k, v v, k"),  # two names cannot change places by renames
    ("OrderedDict, print -> dict, log", FUNCTION, None),
    ("store in factory, custom", FUNCTION, None),
]


def region_of(text: str, file: str) -> Region:
    start = max(file.find(text), 0)
    return Region(start, start + len(text), "", text, "", 1, text.count("\n"))


@pytest.mark.parametrize(("instruction", "text", "wanted"), READ, ids=[f"{n}-{c[0]}" for n, c in enumerate(READ)])
def test_it_is_read(instruction: str, text: str, wanted: str | None) -> None:
    file = CODE if text in CODE else text
    call = read(instruction, region_of(text, file), file)
    parts = [one for _, one in call.parts] if isinstance(call, Steps) else [call] if call else []
    assert all(one.name in MEANINGS for one in parts)
    assert (", ".join(" ".join((one.name, *one.args)) for one in parts) or None) == wanted


def test_more_to_do_is_no_reason() -> None:
    for said in ("rename a to b, it is bad and then raise", "drop x, which is old and use y", "return 1, none"):
        assert core(said) == said
    assert core("drop x, none of the callers pass it") == "drop x"
    assert core('drop x, it says "and use it"') == "drop x"


TAILS = (" except on windows", " unless debug is set", " and then sort the rest", " twice", " but only in tests")


@pytest.mark.parametrize("tail", TAILS)
def test_a_word_that_nothing_stands_for_is_never_left_out(tail: str) -> None:
    """Whatever is read with more words behind it is not read the same way: the new words are part of a text that is
    given to the letter, or a model has to read all of it."""
    for instruction, text, wanted in [*READ, *MORE]:
        said, file = instruction + tail, CODE if text in CODE else MORE_CODE if text in MORE_CODE else text
        call = read(said, region_of(text, file), file) if wanted is not None and ", the issue" not in said else None
        assert call is None or tail.strip() in " ".join(call.args), said


def test_text_ends_where_its_quotes_end() -> None:
    for said in ("change the docstring to 'Load it all.' in both", "the message should be 'no such file' for these"):
        assert read(said, region_of(FUNCTION, CODE), CODE) is None
    for said, wanted in (
        ("replace Load with Read and parse", "replace_text Load Read and parse"),
        ("typo: Load -> Read and parse", "replace_text Load Read and parse"),
        ("Load -> Reload", "replace_text Load Reload"),
        ("alot -> a lot", "replace_text alot a lot"),
        ("Load -> Read and parse", None),
        ("folder -> path of it", None),
    ):
        text = FUNCTION.replace("Load it.", "Load it, alot.")
        call = read(said, region_of(text, text), text)
        assert (" ".join((call.name, *call.args)) if call else None) == wanted


FILES = {
    "long.py": "import os, sys\n\n\n" + "".join(f"def f{n}(a):\n    return a == None\n\n\n" for n in range(40)),
    "shop.py": """\
class Shop:
    def __init__(self, name, size):
        self.name = name
        self.size = size

    @property
    def total(self):
        return self.size * 2
""",
}


def proposed(project: Path, at: str, say: str) -> str:
    task = locate(parse_target(at, project), say)
    call = task.spelled_out()
    assert call is not None
    result = propose(task, call)
    assert isinstance(result, Proposal), result.reason
    return result.text


def test_who_names_a_file_alone_means_all_of_it(project: Path) -> None:
    """Where every place is meant; a change of one place needs to be told which."""
    assert proposed(project, "long.py", "use is None").count("is None") == 40
    assert proposed(project, "long.py", "one import per line").startswith("import os\nimport sys\n\n")
    for say in ("rename a to b", "drop the else", "return early if a is None"):
        with pytest.raises(FulgurError, match="which part"):
            locate(parse_target("long.py", project), say)
    assert set(MEANINGS) >= EVERYWHERE


def test_a_property_becomes_a_cached_one_with_its_import(project: Path) -> None:
    text = proposed(project, "shop.py:Shop.total", "use @cached_property")
    assert text.startswith("from functools import cached_property\n") and "    @cached_property\n    def total" in text
    assert "@property" not in text


def test_the_new_method_says_what_it_shows(project: Path) -> None:
    text = proposed(project, "shop.py:Shop", "add a __repr__")
    assert text.endswith('        return f"{type(self).__name__}(name={self.name!r}, size={self.size!r})"\n')
    assert (
        describe(Call("add_method", ("Shop", "__repr__", "name", "size"))) == "add __repr__ to Shop, using name, size"
    )
    assert "unhashable" in describe(Call("add_method", ("Shop", "__eq__", "name")))  # what one does not see in the diff
