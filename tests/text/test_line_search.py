"""Which line is chosen among several, and where a greedy line is left."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fulgur.text.code_prompt import following
from fulgur.text.search import Branch, Candidate, Step, best, branches

WORDS = [" a", " b", "\n", " re", " return", "\ufffd"]
STOP = 99


def decode(tokens: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in tokens)


def test_the_most_probable_branches_are_followed() -> None:
    steps = [Step(0, -0.5, ((0, -0.5), (1, -1.0), (5, -1.1))), Step(1, -0.1, ((2, -3.0), (STOP, -4.0)))]
    assert branches(steps, "", decode, {STOP}) == [
        Branch((1,), " b", -1.0, False),
        Branch((0, 2), " a", -3.5, True),
        Branch((0,), " a", -4.5, True),
    ]


def test_a_branch_begins_with_the_given_text() -> None:
    steps = [Step(3, -0.1, ((4, -2.0), (0, -0.2)))]
    assert branches(steps, " re", decode, ()) == [Branch((4,), "turn", -2.0, False)]


CHOICES = [
    ("x = 1\n", "\nprint(x)\n", ["x += 1", "x = 2"], "x += 1"),  # the first of equal ones
    ("if a:\n    ", "\n    else:\n        b()\n", ["pass", "try:"], "pass"),  # no block follows
    ("def f(a):\n    ", "\n        return 1\n", ["a += 1", "if a:"], "if a:"),  # a block follows
    ("def f(a):\n    ", "\n        return 1\n    return 2\n", ["try:", "if a:"], "if a:"),  # nothing is caught
    ("def f(a):\n    ", '\n    a.update()\n', ["a.update()", "a = a"], "a = a"),  # the next line
    ("def f(a):\n    ", "\n    return a\n", ["a = 'b", "a = 'b'"], "a = 'b'"),
    ("def f(a):\n    ", "\n    total += a\n", ["a = 0", "total = 0"], "total = 0"),  # read below, nowhere bound
    ("def f(a):\n    ", "\n    return a\n", ["a = other(a)", "a = len(a)"], "a = len(a)"),  # no such name
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "texts", "wanted"), CHOICES, ids=[case[3] for case in CHOICES])
def test_what_speaks_against_a_line(before: str, after: str, texts: list[str], wanted: str) -> None:
    assert best([Candidate(text, -1.0) for text in texts], before, after, "a.py").text == wanted
    assert best([Candidate(text, -1.0) for text in texts], before, after, "a.ts").text == texts[0]


def test_a_line_that_is_reached_twice_counts_twice() -> None:
    found = best([Candidate("a", -1.0), Candidate("b", -1.2), Candidate("b", -1.2)], "", "", "a.txt")
    assert found.text == "b" and found.log_probability == pytest.approx(-0.507, abs=1e-3)


def test_a_line_after_which_the_next_ones_are_likely() -> None:
    found = [Candidate("a", -1.0), Candidate("b", -1.5)]
    assert best(found, "", "", "a.txt", {"a": -9.0, "b": -3.0}).text == "b"
    assert best(found, "", "", "a.txt", {"a": -3.5, "b": -3.0}).text == "a"
    assert best(found, "", "", "a.txt", {}).text == "a"


def test_the_lines_that_judge_a_guess() -> None:
    assert following("\n\n  one\n\n  two\n  three\n") == "\n\n  one\n\n  two\n"
    assert following(")\n  one") == ")\n  one\n"
    assert following(")\n\n") == following("") == ""
