"""What linters point out, methods that follow from attributes, and loops that fill: done exactly, or refused."""

from __future__ import annotations

import io
from typing import Any

import pytest

from fulgur.edit.refactor import RefactorError, apply_call
from fulgur.text.edit_format import Call

POINT = '''class Point:
    """A point."""

    def __init__(self, x, y):
        self.x, self._y = x, y
'''
SLOTS = POINT.replace('point."""\n', 'point."""\n\n    __slots__ = ("x", "_y")\n')
REPR = """
    def __repr__(self):
        return f"{type(self).__name__}(x={self.x!r}, y={self._y!r})"
"""
EQ = """
    def __eq__(self, other):
        if not isinstance(other, Point):
            return NotImplemented
        return (self.x, self._y) == (other.x, other._y)
"""
HASH = "\n    def __hash__(self):\n        return hash((self.x, self._y))\n"
EQ_X = "\n    def __eq__(self, other):\n        return self.x == other.x\n"
TYPED = "class A:\n    def __init__(self, x: int) -> None:\n        self.x = x\n"
DATA = "from dataclasses import dataclass\nfrom typing import ClassVar\n\n\n@dataclass\nclass A:\n    x: int\n"
TRY = "def f(g):\n    try:\n        return g()\n    except {} as e:\n        return 1\n"
FILL = "def f(g, a):\n    out = []\n    b = g()\n    for x in a:\n        out.append((x, b))\n    return out\n"
PROPERTY = "class A:\n    @property\n    def x(self):\n        return 1\n"


def has(*names: str) -> Call:
    return Call("add_method", ("Point", *names))


DONE: list[tuple[Call, str, str]] = [
    (Call("merge_isinstance"), "ok = isinstance(a, str) or isinstance(a, (int, type(None)))\n",
     "ok = isinstance(a, (str, int, type(None)))\n"),
    (Call("merge_isinstance"), "if a:\n    t = str\nelse:\n    t = bytes\nok = isinstance(a, u) or isinstance(a, t)\n",
     "if a:\n    t = str\nelse:\n    t = bytes\nok = isinstance(a, (u, t))\n"),
    (Call("merge_isinstance"), "import m\nok = not (isinstance(a.b, m.C) or isinstance(a.b, list))\n",
     "import m\nok = not isinstance(a.b, (m.C, list))\n"),
    (Call("and_or"), "def f(a):\n    return a and int or str\n", "def f(a):\n    return int if a else str\n"),
    (Call("and_or"), "b = 'x' + (a > 1 and 's' or '')\n", "b = 'x' + ('s' if a > 1 else '')\n"),
    (Call("and_or"), "b = c + a and 1 or 2\n", "b = 1 if c + a else 2\n"),
    (Call("and_or"), "b = [a and 1 or 2]\n", "b = [(1 if a else 2)]\n"),
    (Call("while_true"), "while 1:\n    a()\nwhile 1 and b:\n    pass\n",
     "while True:\n    a()\nwhile 1 and b:\n    pass\n"),
    (Call("drop_exception_name", ("e",)), TRY.format("E"), TRY.replace(" as e", "").format("E")),
    (Call("drop_exception_name"), TRY.format("(E, F)"), TRY.replace(" as e", "").format("(E, F)")),
    (Call("iterate_file"), "for a in f.readlines():\n    b(a)\nf.close()\n", "for a in f:\n    b(a)\nf.close()\n"),
    (Call("iterate_file"), "b = [a.replace('x', '') for a in open(c).readlines() if a]\n",
     "b = [a.replace('x', '') for a in open(c) if a]\n"),
    (Call("iterate_file"), "def f(p):\n    with open(p) as g:\n        for a in g.readlines():\n            yield a\n",
     "def f(p):\n    with open(p) as g:\n        for a in g:\n            yield a\n"),
    (Call("variable_to_parameter", ("b",)), "def f(a):\n    b = -1\n    return a + b\n",
     "def f(a, b=-1):\n    return a + b\n"),
    (Call("split_imports"), "def f():\n    import a, b as c\n", "def f():\n    import a\n    import b as c\n"),
    (has("__repr__", "x", "_y"), POINT, POINT + REPR),
    (has("__eq__", "x", "_y"), POINT, POINT + EQ),
    (has("__hash__", "x", "_y"), POINT + EQ, POINT + EQ + HASH),
    (has("__slots__", "x", "_y"), POINT, SLOTS),
    (Call("add_method", ("A", "__repr__", "x")), TYPED,
     TYPED + '\n    def __repr__(self) -> str:\n        return f"{type(self).__name__}(x={self.x!r})"\n'),
    (Call("add_method", ("A", "__hash__", "x")), DATA + EQ_X,
     DATA + EQ_X + "\n    def __hash__(self):\n        return hash((self.x,))\n"),
    (Call("add_decorator", ("@x", "cached_property")), PROPERTY, PROPERTY.replace("@property", "@cached_property")),
    (Call("use_comprehension"), FILL,
     "def f(g, a):\n    b = g()\n    out = [(x, b) for x in a]\n    return out\n"),
    (Call("use_comprehension"),
     "def f(self, a):\n    self.b = []\n    for x in a:\n        self.b.append(x + self.c)\n",
     "def f(self, a):\n    self.b = [x + self.c for x in a]\n"),
    (Call("use_comprehension"), "out = []\nfor x in a:\n    out.append(x)\nb = [x for x in out]\n",
     "out = [x for x in a]\nb = [x for x in out]\n"),
    (Call("use_comprehension"), f"out = []\nfor x in a:\n    if x != 1:\n        out.append({'y' * 80})\n",
     f"out = [\n    {'y' * 80}\n    for x in a\n    if x != 1\n]\n"),
    (Call("use_comprehension"), "b = dict((c, d) for c in e)\n", "b = {c: d for c in e}\n"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "before", "after"), DONE, ids=[f"{c.name}-{n}" for n, (c, _, _) in enumerate(DONE)])
def test_it_is_done(call: Call, before: str, after: str) -> None:
    assert apply_call(before, call) == after


TRIED = "def f(a, h):\n    try:\n        out = []\n        for x in a:\n            out.append(h(x))\n    except E:\n"
REFUSED: list[tuple[Call, str, str]] = [
    (Call("merge_isinstance"), "ok = isinstance(a, str) or isinstance(b, int)\n", "no pair"),
    (Call("merge_isinstance"), "ok = isinstance(a(), str) or isinstance(a(), int)\n", "once instead of twice"),
    (Call("merge_isinstance"), "ok = isinstance(a, str) or isinstance(a, unicode)\n", "may be undefined"),
    (Call("merge_isinstance"), "ok = isinstance(a, str) or isinstance(a, kinds())\n", "may be undefined"),
    (Call("merge_isinstance"), "if a:\n    t = str\nok = isinstance(a, u) or isinstance(a, t)\n", "`t` would always"),
    (Call("merge_isinstance"),
     "try:\n    import m\nexcept ImportError:\n    m = None\nok = isinstance(a, str) or isinstance(a, m.B)\n",
     "be undefined"),
    (Call("merge_isinstance"), "ok = (isinstance(a, str)  # why\n    or isinstance(a, int))\n", "comment"),
    (Call("and_or"), "b = a and c or d\n", "may be false"),
    (Call("and_or"), "b = a and '' or d\n", "may be false"),
    (Call("and_or"), "from c import str\nb = a and str or d\n", "may be false"),
    (Call("and_or"), "x, str = 1, ''\nb = a and str or d\n", "may be false"),
    (Call("and_or"), "b = a and c\n", "no `and`"),
    (Call("while_true"), "while 2:\n    pass\n", "changes nothing"),
    (Call("drop_exception_name", ("e",)), TRY.replace("return 1", "return e").format("E"), "uses e"),
    (Call("drop_exception_name", ("e",)), TRY.replace("return 1", "return f'{{e}}'").format("E"), "uses e"),
    (Call("drop_exception_name"), TRY.replace("(g)", "(g, e)").format("E") + "    finally:\n        g(e)\n", "outside"),
    (Call("drop_exception_name", ("err",)), TRY.format("E"), "names its exception err"),
    (Call("iterate_file"), "a = f.readlines()\n", "no loop"),
    (Call("iterate_file"), "b = (a for a in f.readlines())\n", "closed"),
    (Call("iterate_file"), "def f(g):\n    for a in g.readlines():\n        yield a\n", "closed"),
    (Call("iterate_file"), "for a in f.readlines():\n    f.seek(0)\n", "uses f itself"),
    (Call("iterate_file"), "for a in f.readlines():\n    if a:\n        break\nb = f.read()\n", "stop early"),
    (Call("iterate_file"), "for a in open(p).readlines():\n    open(p, 'w').write(a)\n", "changes files"),
    (Call("iterate_file"), "for a in open(p).readlines():\n    os.remove(p)\n", "changes files"),
    (Call("variable_to_parameter", ("b",)), "def f(a):\n    b = -a\n    return b\n", "not to a literal"),
    (Call("variable_to_parameter", ("b",)), "def f(a):\n    b = []\n    return b\n", "not to a literal"),
    (Call("variable_to_parameter", ("b",)), "def f(a):\n    b = 1\n    b += a\n    return b\n", "more than once"),
    (Call("variable_to_parameter", ("b",)), "def f(a, *c):\n    b = 1\n    return b\n", "star"),
    (Call("variable_to_parameter", ("b",)), "def f(a):\n    global b\n    b = 1\n    return b\n", "something else"),
    (Call("variable_to_parameter", ("@x", "b")), PROPERTY.replace("return 1", "b = 1\n        return b"), "property"),
    (Call("variable_to_parameter", ("b",)), "def f(a):\n    b = 1  # why\n    return b\n", "comment"),
    (Call("split_imports"), "import a, b  # why\n", "comment"),
    (Call("split_imports"), "import a\nfrom b import c, d\n", "no line"),
    (has("__repr__", "z"), POINT, "does not always set z"),
    (has("__repr__", "z"), POINT + "        if x:\n            self.z = 1\n", "does not always set z"),
    (has("__repr__", "z"), POINT + "        if x:\n            return\n        self.z = 1\n", "does not always set z"),
    (has("__repr__", "x"), POINT + "\n    __repr__ = None\n", "already"),
    (has("__hash__", "x"), POINT, "no __eq__"),
    (has("__hash__", "x", "_y"), POINT + EQ_X, "compare _y"),
    (has("__hash__", "z"), POINT + "        self.z = []\n" + EQ_X.replace(".x", ".z"), "is mutable"),
    (has("__eq__", "x"), POINT + "\n    @functools.lru_cache()\n    def area(self):\n        return 1\n", "unhashable"),
    (has("__slots__", "x"), POINT, "_y is set"),
    (has("__slots__", "x", "_y"), POINT + "\n    def f(self):\n        self.z = 1\n", "z is set"),
    (has("__slots__", "x", "_y"), POINT + "\n\nPoint(1, 2).z = 1\n", "z is set"),
    (has("__slots__", "x", "_y"), POINT.replace("Point:", "Point(Base):"), "bases"),
    (has("__slots__", "x", "_y"), POINT + "\n    x = 1\n", "cannot be a slot"),
    (has("__slots__", "x", "_y"), POINT + "\n\nvars(Point(1, 2))\n", "vars"),
    (Call("add_method", ("A", "__repr__", "y")), DATA + "    y: ClassVar[int] = 1\n", "does not always set y"),
    (Call("add_method", ("A", "__repr__", "x")), DATA.replace("@dataclass\n", ""), "does not always set x"),
    (Call("add_decorator", ("@x", "cache")), PROPERTY, "is a property"),
    (Call("add_decorator", ("@x", "cached_property")), PROPERTY + "    __slots__ = ()\n", "slots"),
    (Call("use_comprehension"), FILL.replace("g()", "g(out)"), "no loop"),
    (Call("use_comprehension"), FILL.replace("    b = g()",
     "    def h():\n        return out\n    b = g()"), "no loop"),
    (Call("use_comprehension"), FILL.replace("    out = []", "    global out\n    out = []"), "no loop"),
    (Call("use_comprehension"), FILL.replace("out = []", "out = []  # why"), "no loop"),
    (Call("use_comprehension"), "out = []\nb = g()\nfor x in a:\n    out.append(x)\n", "no loop"),  # g may read out
    (Call("use_comprehension"), "out = []\nfor x in a:\n    out.append(x)\nb = x\n", "used after the loop"),
    (Call("use_comprehension"), "out = []\nfor a.b in c:\n    out.append(a.b)\n", "used after the loop"),
    (Call("use_comprehension"), "self.b = []\nfor x in a:\n    self.b.append(self.f(x))\n", "while filling"),
    (Call("use_comprehension"), "self.b = []\nfor x in a:\n    self.b.append(len(self.b))\n", "while filling"),
    (Call("use_comprehension"), "self.b = []\nfor x in a:\n    self.b.append(f(self))\n", "while filling"),
    (Call("use_comprehension"), TRIED + "        pass\n    return out\n", "exception"),
    (Call("use_comprehension"), TRIED + "        return out\n", "exception"),
    (Call("use_comprehension"), "b = dict(\n    # why\n    (c, d) for c in e\n)\n", "comment"),
    (Call("use_comprehension"), "from a import dict\nb = dict((c, d) for c in e)\n", "something else"),
    (Call("literal_kind", ("A", "tuple")), "A = ['a', 'b']\nB = A + ['c']\n", "concatenated"),
    (Call("literal_kind", ("A", "set")), "A = ['a', 'b']\nB = A[0]\n", "order"),
    (Call("literal_kind", ("A", "set")), "A = ['a', 'b']\nfor b in A:\n    pass\n", "order"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text", "why"), REFUSED, ids=[f"{c.name}-{n}" for n, (c, _, _) in enumerate(REFUSED)])
def test_it_is_refused(call: Call, text: str, why: str) -> None:
    with pytest.raises(RefactorError, match=why):
        apply_call(text, call)


def test_a_function_of_the_name_of_a_method_is_none_of_its_uses() -> None:
    text = "class A:\n    def next(self):\n        return 1\n\n    def f(self, b):\n        return next(b)\n"
    after = apply_call(text, Call("delete_symbol", ("A.next",)))
    assert after == "class A:\n    def f(self, b):\n        return next(b)\n"
    for use in ("    g = next\n", "\n\nA().next()\n"):
        with pytest.raises(RefactorError, match="uses next"):
            apply_call(text + use, Call("delete_symbol", ("A.next",)))


def test_what_follows_lines_of_a_function_counts() -> None:
    """The lines alone do not show that the loop's variable is read below them, or what an except does."""
    lines = "        out = []\n        for x in a:\n            out.append(h(x))\n"
    for before, after, why in (
        ("def f(a, h):\n    if a:\n", "        return x\n", "used after"),
        ("def f(a, h):\n    try:\n", "    except E:\n        pass\n    return out\n", "exception"),
    ):
        text = before + lines + after
        with pytest.raises(RefactorError, match=why):
            apply_call(text, Call("use_comprehension"), (len(before), len(before + lines)))


# (call, code that defines f, arguments): f gives the same before and after.
SAME: list[tuple[Call, str, list[tuple[Any, ...]]]] = [
    (Call("merge_isinstance"), "def f(a):\n    return isinstance(a, (str, int)) or isinstance(a, list)\n",
     [("a",), (1,), ([],), (None,), (1.5,)]),
    (Call("and_or"), "def f(a, b):\n    return not (a and 'x' or b)\n", [(1, 0), (0, 0), (0, 1), ("", [1])]),
    (Call("drop_exception_name"), "def f(a):\n    try:\n        return 1 / a\n    except ZeroDivisionError as e:\n"
     "        return None\n", [(0,), (2,)]),
    (Call("iterate_file"), "def f(a):\n    out = ''\n    for line in a().readlines():\n        out += line.strip()\n"
     "    return out\n", [(lambda: io.StringIO("a\nb\n\nc"),), (lambda: io.StringIO(""),)]),
    (Call("use_comprehension"), FILL, [(lambda: 3, [1, 2]), (dict, "ab"), (list, [])]),
    (Call("variable_to_parameter", ("b",)), "def f(a):\n    b = 2\n    return a * b\n", [(1,), ("a",)]),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text", "given"), SAME, ids=[case[0].name for case in SAME])
def test_it_does_the_same_afterwards(call: Call, text: str, given: list[tuple[Any, ...]]) -> None:
    before, after = ({}, {})  # type: tuple[dict[str, Any], dict[str, Any]]
    exec(text, before)
    exec(apply_call(text, call), after)
    assert [after["f"](*args) for args in given] == [before["f"](*args) for args in given]


def test_methods_of_attributes_agree_with_each_other() -> None:
    text = POINT
    for name in ("__repr__", "__eq__", "__hash__"):
        text = apply_call(text, has(name, "x", "_y"))
    space: dict[str, Any] = {}
    exec(text, space)
    one, same, other = (space["Point"](1, y) for y in (2, 2, 3))
    assert repr(one) == "Point(x=1, y=2)" and one == same and one != other and one != (1, 2)
    assert hash(one) == hash(same) and len({one, same, other}) == 2
