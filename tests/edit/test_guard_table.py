"""Broken edits, each with the verdict it must get: what refuses it, what is said of its tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.edit.checks import NAMES, PARSES
from fulgur.edit.checks.tests import TestRun, judged, read_run
from fulgur.edit.document import Document
from fulgur.edit.editor import Refusal, verified
from fulgur.eval.edits.instructions import all_instructions
from fulgur.eval.projects import CHOOSE, CONFIRM, FRESH, FRESH_PACKAGES, PACKAGES

MODULE = """\
import os
from json import dumps


class Shop:
    def total(self, prices, rate=1):
        amount = sum(prices)
        return amount * rate


def load(path):
    with open(path) as file:
        return file.read()


def main():
    return load(os.getcwd()), dumps({}), Shop().total([1])
"""
FINE = "fine"
# (what is wrong, old text, new text, the check that refuses it)
EDITS: list[tuple[str, str, str, str]] = [
    ("a bracket left open", "sum(prices)", "sum(prices", PARSES),
    ("a colon lost", "def load(path):", "def load(path)", PARSES),
    ("a return at the top", "def main():\n    return", "return", PARSES),
    ("a keyword given twice", "open(path)", "open(path, mode='r', mode='w')", PARSES),
    ("a parameter twice", "def load(path):", "def load(path, path):", PARSES),
    ("a parameter without a default after one", "rate=1)", "rate=1, more)", PARSES),
    ("await in a plain function", "return file.read()", "return await file.read()", PARSES),
    ("yield at the top", "def main():\n    return", "yield", PARSES),
    ("break outside a loop", "amount = sum(prices)", "break", PARSES),
    ("an indentation lost", "        amount = sum", "      amount = sum", PARSES),
    ("an assignment to a call", "amount = sum(prices)", "sum(prices) = 1", PARSES),
    ("an f-string left open", "return file.read()", "return f'{file.read()'", PARSES),
    ("nonlocal at module level", "def main():", "nonlocal x\ndef main():", PARSES),
    ("an unknown name", "sum(prices)", "total_of(prices)", NAMES),
    ("a misspelt local", "return amount", "return amuont", NAMES),
    ("a definition renamed, not its use", "def load(path):", "def read(path):", NAMES),
    ("an import removed, not its use", "import os\n", "", NAMES),
    ("a name of an import removed", "from json import dumps", "from json import loads", NAMES),
    ("a class renamed, not its use", "class Shop:", "class Store:", NAMES),
    ("a decorator that is not there", "def load(path):", "@cached\ndef load(path):", NAMES),
    ("a default that is not there", "rate=1", "rate=DEFAULT_RATE", NAMES),
    ("an annotation that is not there", "def load(path):", "def load(path: PathLike):", NAMES),
    ("a base that is not there", "class Shop:", "class Shop(Base):", NAMES),
    ("a local read before it is set", "amount = sum(prices)", "amount = amount + sum(prices)", NAMES),
    ("a local of an inner function", "return amount", "def f():\n            bonus = 1\n        return bonus", NAMES),
    ("an exception that is not there", "return file.read()", "raise LoadError(path)", NAMES),
    ("self outside a method", "def main():\n", "def main():\n    self.x = 1\n", NAMES),
    ("a variable of a comprehension used outside", "return amount", "[p for p in prices]\n        return p", NAMES),
    ("nothing wrong", "amount = sum(prices)", "amount = float(sum(prices))", FINE),
    ("a comment", "import os\n", "import os  # paths\n", FINE),
]


@pytest.mark.parametrize(("what", "old", "new", "wanted"), EDITS, ids=[case[0] for case in EDITS])
def test_a_broken_edit_is_refused(what: str, old: str, new: str, wanted: str) -> None:
    assert MODULE.count(old) == 1
    document = Document.of(Path("shop.py"), "shop.py", MODULE.encode())
    result = verified(document, MODULE.replace(old, new), ())
    assert (result.check if isinstance(result, Refusal) else FINE) == wanted


def run(code: int | None, *failed: str, output: str = "", timed_out: bool = False) -> TestRun:
    return read_run(code, "\n".join([*(f"FAILED {name} - x" for name in failed), output]), timed_out=timed_out)


CLEAN = run(0)
# (what happened, after the edit, before it, whether the edit is to blame, what is said)
RUNS: list[tuple[str, TestRun, TestRun | None, bool, str]] = [
    ("all pass", CLEAN, CLEAN, False, ""),
    ("a test fails since", run(1, "t.py::a"), CLEAN, True, ""),
    ("a test that failed before", run(1, "t.py::a"), run(1, "t.py::a"), False, "1 of these tests failed before"),
    ("one before, another since", run(1, "t.py::a", "t.py::b"), run(1, "t.py::a"), True, "1 of these tests failed"),
    ("an import error in the test file", run(2, output="ERROR t.py"), CLEAN, True, ""),
    ("an import error that was there", run(2, output="ERROR t.py"), run(2, output="ERROR t.py"), False, "1 of these"),
    ("a conftest that cannot be imported", run(4, output="ImportError while loading conftest"), CLEAN, True, ""),
    ("a conftest that never could be", run(4), run(4), False, "could not run before the edit either"),
    ("an internal error of pytest", run(3), CLEAN, True, ""),
    ("no test in the files", run(5), None, False, "tests not run: pytest found no test"),
    ("no pytest", run(1, output="No module named pytest"), None, False, "tests not run: there is no pytest"),
    ("a Python that is not there", run(127), None, False, "tests not run: the project's Python cannot be started"),
    ("too slow", run(None, timed_out=True), None, False, "tests not run: they took over"),
    ("fails, and before is not known", run(1, "t.py::a"), None, True, "it is unknown"),
    ("before was too slow", run(1, "t.py::a"), run(None, timed_out=True), True, "it is unknown"),
]


@pytest.mark.parametrize(("what", "after", "before", "blamed", "said"), RUNS, ids=[case[0] for case in RUNS])
def test_what_the_tests_say_of_an_edit(
    what: str, after: TestRun, before: TestRun | None, blamed: bool, said: str
) -> None:
    found = judged(after, before)
    assert bool(found.problems) == blamed and said in found.note
    # ✓ needs a run that is known to the end
    assert found.passed == (not blamed and not found.note.startswith("tests not run"))


def test_the_suite_of_instructions_is_what_it_says() -> None:
    """At least 8 packages and 200 instructions, none of a package that a model is trained on."""
    listed = (Path(__file__).parents[2] / "lab/train/sources.txt").read_text().lower().split()
    listed += (Path(__file__).parents[2] / "lab/train/round4.txt").read_text().lower().split()
    assert not set(listed) & {*PACKAGES, *FRESH_PACKAGES}
    found = all_instructions()
    assert len(PACKAGES) >= 8 and len(found) >= 200 and len({(one.at, one.say) for one in found}) == len(found)
    assert {one.package.part for one in found} == {CHOOSE, CONFIRM, FRESH}
    assert 10 <= sum(not one.possible for one in found) <= 40
