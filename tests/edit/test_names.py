"""Names that a change reads without a value."""

from __future__ import annotations

import pytest

from fulgur.edit.checks.names import new_problems, valueless

LOOP = "def f(pairs):\n    return [a for a, b in pairs if b]\n"


def newly_unbound(before: str, after: str) -> list[str]:
    """Those that are bound somewhere else in the file: no import still to be written would mend them."""
    return [problem.name for problem in new_problems(before, after) if problem.certain]


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
    assert valueless("from os import *\nprint(getcwd())\n") is None
    assert valueless("def f(:\n") is None
    assert newly_unbound(LOOP, "def f(:\n") == []


def test_names_that_nothing_defines() -> None:
    source = (
        "import os\nx = 1\n\n\ndef f(a):\n    global later\n    later = 2\n    y = [a for a in os.listdir()]\n"
        "    return x + y + zz + later + len(y)\n"
    )
    [found] = new_problems("", source)
    assert (found.line, found.name, found.certain) == (9, "zz", False)
    assert new_problems(source, source.replace("def f", "def renamed")) == []
    assert [p.name for p in new_problems("def f(x): ...\n", "def f(x: Sequence[int]): ...\n")] == ["Sequence"]
    assert [p.name for p in new_problems("", "__all__ = ['f', 'g']\n\n\ndef f(): ...\n")] == ["g"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("@cached\ndef f(): ...\n\n\ndef cached(g): ...\n", "cached"),
        ("class A(B): ...\n\n\nclass B: ...\n", "B"),
        ("class A:\n    x = LIMIT\n\n\nLIMIT = 3\n", "LIMIT"),
        ("def f(size=SIZE): ...\n\n\nSIZE = 1\n", "SIZE"),
        ("def f():\n    print(total)\n    total = 1\n", "total"),
        ("def f():\n    total += 1\n", "total"),
        ("def f() -> A: ...\n\n\nclass A: ...\n", "A"),
    ],
)
def test_a_name_read_before_it_is_bound_is_certainly_wrong(text: str, name: str) -> None:
    [found] = new_problems("", text)
    assert found.name == name and found.certain and "before it is defined" in found.text
    assert new_problems(text, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    return g()\n\n\ndef g(): ...\n",
        "def f():\n    for x in range(3):\n        if x:\n            print(last)\n        last = x\n",
        "try:\n    text = unicode\nexcept NameError:\n    unicode = str\n",
        "from __future__ import annotations\n\n\ndef f() -> A: ...\n\n\nclass A: ...\n",
        "class A:\n    def f(self):\n        return B\n\n\nclass B: ...\n",
        "f = lambda: later\nlater = 1\n",
        "def f():\n    global count\n    count = 1\n\n\nf()\nprint(count)\ncount = 2\n",
        "if True:\n    a = 1\nelse:\n    b = 2\nprint(a, b)\n",
        "open = open\n",
        "class A:\n    def top(self, x):\n        return self, x\n",
        "__all__ = ['a', 'b']\n\n\ndef __getattr__(name): ...\n",
        "__all__ = [n for n in globals() if n[:1] != '_']\n",
        "print([x for x in range(3)])\nx = 1\n",
        "with open('a') as f:\n    print(f)\nimport os.path\nprint(os)\n",
        "match 1:\n    case y:\n        print(y)\n",
        "while (n := 1):\n    print(n)\n",
    ],
)
def test_what_runs_later_or_may_be_bound_is_left_alone(text: str) -> None:
    assert new_problems("", text) == []
