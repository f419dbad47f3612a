"""The last change, made once more on the lines that it fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.edit.document import Document
from fulgur.edit.editor import Proposal, Refusal
from fulgur.edit.next import Following
from fulgur.edit.repeat import repeated
from fulgur.edit.substitution import rules
from fulgur.text.edit_format import RecentEdit

FIT = [
    ("x.load(a, path)", "x.read(a, path)", "y = x.load(a, path)", "y = x.read(a, path)"),
    ("log.warn('a')", "log.warning('a')", "log.warn('b')", "log.warning('b')"),
    ("class A(object):", "class A:", "class B(object):", "class B:"),
    ("size: int = None,", "size: Optional[int] = None,", "name: str = None,", "name: Optional[str] = None,"),
    ("for a in iteritems(m.all()):", "for a in m.all().items():", "for a in iteritems(d):", "for a in d.items():"),
    ("check_eq(val, 'a b')", "assert val == 'a b'", "check_eq(get(x, 1), n)", "assert get(x, 1) == n"),
    ("cache = Cache(128, typed)", "cache = Cache(128, 1, typed)", "b = Cache(128, typed)", "b = Cache(128, 1, typed)"),
    (
        "def run(self, lines):",
        "def run(self, lines: list):",
        "    def run(self, lines):",
        "    def run(self, lines: list):",
    ),
]
UNFIT = [
    ("x.load(a)", "x.read(a)", "load = 1"),  # another place
    ("x = get(a)", "x = await get(a)", "y = get(b)"),  # too little around what is added
    ("x = f(a)", "x = f(a)  # type: ignore", "y = f(b)"),  # a comment is about its line
    ("def size(self):", "def size(self) -> int:", "def name(self):"),
    ("def f(self, size):", "def f(self, size: int):", "def g(self, name):"),  # of another parameter
    ("self.assertFalse(res[0].new)", "self.assertTrue(res[0].new)", "self.assertFalse(res[1].new)"),
    ("show('{a} b')", "show(f'{a} b')", "show('{a')"),
    ("): ", ") -> int:", "):"),
    ("if isinstance(one, float):", "if not isinstance(one, float):", "if isinstance(one, type_) or x:"),
    ("name = self.get(el, 'a')", "name = cast(str, self.get(el, 'a'))", "name = other"),
]  # fmt: skip


def last(before: str, after: str, other: str) -> str:
    """What becomes of another line after a change of one."""
    text = repeated(f"{after}\n{other}", [RecentEdit(before + "\n", after + "\n")], {1})
    assert text.split("\n")[0] == after
    return text.split("\n", 1)[1]


@pytest.mark.parametrize(("before", "after", "other", "wanted"), FIT)
def test_a_change_is_repeated_on_lines_like_the_first(before: str, after: str, other: str, wanted: str) -> None:
    assert last(before, after, other) == wanted


@pytest.mark.parametrize(("before", "after", "other"), UNFIT)
def test_a_change_is_not_repeated_elsewhere(before: str, after: str, other: str) -> None:
    assert last(before, after, other) == other


STRINGS = [
    ("a = 'x'", 'a = "x"', "f('y', r'\\d', b'z')", 'f("y", r"\\d", b"z")'),
    ("a = 'x'", 'a = "x"', "f('say \"y\"', 'it\\'s')", "f('say \"y\"', 'it\\'s')"),
    ("a = u'x'", "a = 'x'", "f(u'y', b'z')", "f('y', b'z')"),
    ("a = 'x'", "a = b'x'", "f('y')", "f('y')"),
    ("a = 'x'", "a = '''x'''", "f('y')", "f('y')"),
]


@pytest.mark.parametrize(("before", "after", "other", "wanted"), STRINGS)
def test_how_strings_are_written(before: str, after: str, other: str, wanted: str) -> None:
    assert last(before, after, other) == wanted


def test_a_refactoring_is_repeated_by_itself() -> None:
    other = "    raise ValueError('no {} in {}'.format(name, self.path))\nb = '%s' % x"
    wanted = "    raise ValueError(f'no {name} in {self.path}')\nb = '%s' % x"
    assert last("a = '{}!'.format(x)", "a = f'{x}!'", other) == wanted


def test_none_is_said_of_functions_that_return_nothing() -> None:
    text = "def f() -> None:\n    pass\n\ndef g():\n    return 1\n\ndef h():\n    def i():\n        return 2\n    i()\n"
    found = repeated(text, [RecentEdit("def f():\n", "def f() -> None:\n")], {1})
    assert found == text.replace("def h():", "def h() -> None:")


def test_a_second_change_shows_what_the_first_left_open() -> None:
    text = "f(first)\nf(second)\ng(third)\nh(fourth, keep)\n"
    one, two = RecentEdit("f(old, first)\n", "f(first)\n"), RecentEdit("f(old, second)\n", "f(second)\n")
    assert repeated(text + "f(old, last)\n", [one, two], {1, 2}) == text + "f(last)\n"


def test_a_long_line_is_looked_at_once() -> None:
    """Trying all ways to fit three expressions into a line of this length would not end."""
    long = "check(" + "a, " * 90 + "b)"
    found = list(rules("check(x, y, z, w)", "assert x < y < z < w"))
    assert found and [rule.applied(long) for rule in found] == [long] * len(found)


def following(before: str, after: str) -> Proposal | Refusal | None:
    return Following.of(Document.of(Path("a.py"), "a.py", after.encode()), before).known()


def test_all_other_places_are_one_proposal() -> None:
    before = "import log\n\nlog.warn('a')\nlog.warn('b')\nwarn = 1\nlog.warn('c')\n"
    found = following(before, before.replace("warn('a')", "warning('a')"))
    assert isinstance(found, Proposal) and found.text == before.replace("log.warn(", "log.warning(")
    assert found.understood


def test_a_rename_that_is_done_by_half_needs_no_model() -> None:
    before = "def f(size):\n    a = g(size)\n    return size\n\n\ndef h(size):\n    return size\n"
    after = before.replace("f(size):", "f(width):")
    found = following(before, after)
    assert isinstance(found, Proposal)
    assert found.text == after.replace("g(size)\n    return size", "g(width)\n    return width")


def test_what_is_broken_or_alone_is_not_repeated() -> None:
    assert isinstance(following("a = 1\nb = 2\n", "a = 3\nb = 2\n"), Refusal)
    similar = "def f(x):\n    return load(x, 1)\n\n\ndef g(y):\n    return load(y, 2)\n"
    assert following(similar, similar.replace("load(x, 1)", "load(x, one=1, two=2, three=3)")) is None  # for a model
