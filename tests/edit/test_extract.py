"""Lines become a function of their own and mean the same, or it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fulgur.edit.editor import Proposal, locate, propose
from fulgur.edit.refactor import RefactorError, apply_call
from fulgur.edit.region import parse_target
from fulgur.text.edit_format import Call


def extracted(code: str, name: str = "part") -> str:
    """The lines between `#[` and `#]`."""
    start = code.index("#[\n") + 3
    end = code.index("#]", start)
    end = code.rindex("\n", 0, end) + 1
    text = code[: start - 3].rstrip(" ") + code[start:end] + code[code.index("\n", end) + 1 :]
    begin = len(code[: start - 3].rstrip(" "))
    return apply_call(text, Call("extract_function", (name,)), (begin, begin + end - start))


def ran(code: str, call: str) -> Any:
    scope: dict[str, Any] = {}
    exec(compile(code.replace("#[", "#").replace("#]", "#"), "code", "exec"), scope)
    return eval(call, scope)


CASES = [
    ("reads and sets", "def f(a: int, b):\n    #[\n    c = a + b\n    d = c * 2\n    #]\n    return c, d\n", "f(2, 3)",
     "def part(a: int, b):\n    c = a + b\n    d = c * 2\n    return c, d\n\n\n"
     "def f(a: int, b):\n    c, d = part(a, b)\n    return c, d\n"),
    ("ends with a return", "def f(a):\n    #[\n    if a:\n        return 1\n    return 2\n    #]\n", "f(0)",
     "def part(a):\n    if a:\n        return 1\n    return 2\n\n\ndef f(a):\n    return part(a)\n"),
    ("in a loop",
     "def f(xs):\n    total = 0\n    for x in xs:\n        #[\n        total += x\n        #]\n    return total\n",
     "f([1, 2, 3])",
     "def part(total, x):\n    total += x\n    return total\n\n\n"
     "def f(xs):\n    total = 0\n    for x in xs:\n        total = part(total, x)\n    return total\n"),
    ("set under a condition", "def f(a):\n    b = 1\n    #[\n    if a:\n        b = 2\n    #]\n    return b\n", "f(0)",
     "def part(a, b):\n    if a:\n        b = 2\n    return b\n\n\n"
     "def f(a):\n    b = 1\n    b = part(a, b)\n    return b\n"),
    ("a loop's own variable",
     "def f(xs):\n    #[\n    out = []\n    for x in xs:\n        out.append(x)\n    #]\n    return out\n",
     "f([1])",
     "def part(xs):\n    out = []\n    for x in xs:\n        out.append(x)\n    return out\n\n\n"
     "def f(xs):\n    out = part(xs)\n    return out\n"),
    ("a suppressed error",
     "from contextlib import suppress\n\n\ndef f(a):\n    b = 1\n    #[\n    with suppress(KeyError):\n"
     "        b = a['x']\n    #]\n    return b\n", "f({})",
     "from contextlib import suppress\n\n\n"
     "def part(b, a):\n    with suppress(KeyError):\n        b = a['x']\n    return b\n\n\n"
     "def f(a):\n    b = 1\n    b = part(b, a)\n    return b\n"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "code", "call", "wanted"), CASES, ids=[case[0] for case in CASES])
def test_lines_become_a_function(what: str, code: str, call: str, wanted: str) -> None:
    found = extracted(code)
    assert found == wanted and ran(found, call) == ran(code, call)


def test_a_method_that_uses_self() -> None:
    code = "class A:\n  k = 2\n\n  def f(self, x):\n    #[\n    y = x * self.k\n    #]\n    return y\n\n"
    code += "  def g(self): ...\n"
    found = extracted(code)
    assert (
        "    y = self.part(x)\n    return y\n\n  def part(self, x):\n    y = x * self.k\n    return y\n\n  def g"
        in found
    )
    assert ran(found, "A().f(3)") == 6


def test_an_await_makes_it_async() -> None:
    found = extracted("async def f(a):\n    #[\n    b = await a()\n    #]\n    return b\n")
    assert found.startswith("async def part(a):\n    b = await a()\n    return b\n") and "b = await part(a)" in found


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("x = 1\n#[\ny = x\n#]\n", "not inside a function"),
        ("def f(a):\n    #[\n    if a:\n        return 1\n    #]\n    return 2\n", "some of these lines return"),
        (
            "def f(xs):\n    for x in xs:\n        #[\n        if x:\n            break\n        #]\n",
            "is for a loop outside",
        ),
        ("def f():\n    #[\n    yield 1\n    #]\n", "yields"),
        ("def f(a):\n    if a:\n        b = 1\n    #[\n    print(b)\n    #]\n", "b may have no value before"),
        ("def f(a):\n    #[\n    if a:\n        b = 1\n    #]\n    return b\n", "b may have no value after"),
        ("def f():\n    global g\n    #[\n    g = 1\n    #]\n", "is not local"),
        ("def f(a):\n    k = lambda: b\n    #[\n    b = a\n    #]\n    return k\n", "an inner function uses b"),
        ("def part(): ...\ndef f(a):\n    #[\n    print(a)\n    #]\n", "part is already a name in this file"),
        ("def f(a):\n    #[\n    print(a,\n    #]\n        1)\n", "not whole statements"),
    ],
    ids=["module", "return", "break", "yield", "before", "after", "global", "closure", "taken", "half"],
)
def test_refused(code: str, problem: str) -> None:
    with pytest.raises(RefactorError, match=problem):
        extracted(code)


@pytest.mark.parametrize("said", ["extract lines 2-3 into pair", "pull lines 2 to 3 out into a helper pair"])
def test_an_instruction_may_name_the_lines(workspace: Path, said: str) -> None:
    """In a file that is too long to be edited as a whole."""
    text = "def f(a):\n    b = a + 1\n    c = b * 2\n    return c\n" + "\nx = 1" * 100 + "\n"
    (workspace / "app.py").write_text(text)
    task = locate(parse_target("app.py", workspace), said)
    found = propose(task, task.spelled_out() or "")
    assert isinstance(found, Proposal) and "    c = pair(a)\n    return c\n" in found.text
