"""Names a change leaves without a value."""

from __future__ import annotations

import pytest

from fulgur.edit.refactor.unbound import newly_unbound, unbound

LOOP = "def f(pairs):\n    return [a for a, b in pairs if b]\n"


def test_a_name_that_lost_its_binding_is_found() -> None:
    assert newly_unbound(LOOP, LOOP.replace("a, b in", "a in")) == ["b"]


def test_a_parameter_of_another_function_is_no_binding() -> None:
    before = "def f(width):\n    return width\n\n\ndef g(breadth):\n    return breadth\n"
    assert newly_unbound(before, before.replace("return width", "return breadth")) == ["breadth"]


@pytest.mark.parametrize(
    "after",
    [
        "import os\n\n\ndef f(pairs):\n    return os.fspath(pairs)\n",
        "def f(pairs):\n    global total\n    total = 1\n    return total\n\n\ndef g():\n    return total\n",
        "def f(pairs: Path):\n    return len(pairs)\n",
        "class A:\n    x = 1\n    y = x\n\n    def f(self):\n        return __class__\n",
        "def f(pairs):\n    def g():\n        return pairs\n    return g\n",
    ],
)
def test_bound_names_and_names_yet_to_be_imported_are_no_matter(after: str) -> None:
    assert newly_unbound(LOOP, after) == []


def test_what_cannot_be_told_is_not_told() -> None:
    assert unbound("from os import *\nprint(getcwd())\n") is None
    assert unbound("def f(:\n") is None
    assert newly_unbound(LOOP, "def f(:\n") == []
