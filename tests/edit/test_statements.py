"""Checks by statement, which remember what did not change, against the same checks of the whole text."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest

from fulgur.edit.checks import statements
from fulgur.edit.checks.names import valueless, valueless_as_a_whole
from fulgur.edit.checks.statements import parts
from fulgur.edit.checks.syntax import syntax_problems

EDIT = Path(statements.__file__).parents[1]
LINES = (
    "global x",
    "x = 1",
    "from __future__ import annotations",
    '"""',
    "else:",
    "    y",
    "@d",
    "def f(a: T): return b",
    "from os import *",
    "    x: int = z",
    "del x",
    "\\",
    "# c",
    "f(a=1, a=2)",
    "import os as x; x = os",
    "(",
)


def compiles(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "text", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


@pytest.mark.parametrize("name", ["region.py", "substitution.py", "checks/early.py"])
def test_what_is_remembered_agrees_with_the_whole(name: str) -> None:
    rng = random.Random(name)
    text = (EDIT / name).read_text()
    sound = 0
    for _ in range(40):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        match rng.randrange(4):
            case 0:
                del lines[at : at + rng.choice((1, 2, 5))]
            case 1:
                lines[at:at] = [rng.choice(LINES)]
            case 2:
                lines[at] = lines[at].replace(rng.choice("abcdefg("), rng.choice(("x", "")), 1)
            case _:
                lines[at:at] = lines[:6]
        changed = "\n".join(lines)
        assert (syntax_problems("a.py", changed) == []) is compiles(changed), changed
        if compiles(changed):
            assert valueless(changed) == valueless_as_a_whole(changed), changed
            assert "".join(parts(changed) or ()) == changed
            sound += 1
            text = changed if rng.random() < 0.3 else text
    assert sound > 5


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if a:\n    b = 1\n", "if a:\n    b = 1\nelse:\n    b = 2\n"),
        ("a = 1\nb = 2", "a = 1\nb = 2 + a\n"),
        ("a = 1\n", 'a = """\n' + "a = 1\n" + '"""\n'),
        ("a = 1; b = a\nc = b\n", "a = 1; b = c\nc = b\n"),
        ("", "# only a remark\n"),
    ],
)
def test_what_is_new_may_belong_to_what_was_there(before: str, after: str) -> None:
    for text in (before, after, before):
        assert "".join(parts(text) or ()) == text
        assert valueless(text) == valueless_as_a_whole(text)


def test_a_keystroke_costs_the_statement_it_is_in() -> None:
    functions = [f"def f{n}(a):\n    return a + {n}\n\n\n" for n in range(50)]
    first = parts("".join(functions)) or ()
    functions[20] = functions[20].replace("return a", "return b")
    second = parts("".join(functions)) or ()
    assert [at for at, (old, new) in enumerate(zip(first, second, strict=True)) if old is not new] == [20]
