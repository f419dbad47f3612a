"""Two changes of one text."""

import random

import pytest

from fulgur.workspace.merge import merge

BASE = b"a\nb\nc\nd\ne\n"


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [
        (BASE, BASE, BASE),
        (b"A\nb\nc\nd\ne\n", BASE, b"A\nb\nc\nd\ne\n"),
        (b"A\nb\nc\nd\ne\n", b"a\nb\nc\nd\nE\n", b"A\nb\nc\nd\nE\n"),
        (b"A\nb\nc\nd\ne\n", b"A\nb\nc\nd\nE\n", b"A\nb\nc\nd\nE\n"),  # the same change in both
        (b"a\nc\nd\ne\n", b"a\nb\nc\nd\nx\ne\n", b"a\nc\nd\nx\ne\n"),
        (b"A\nb\nc\nd\ne\n", b"X\nb\nc\nd\ne\n", None),
        (b"a\nB\nc\nd\ne\n", b"a\nb\nC\nd\ne\n", None),  # adjoining
        (b"new\na\nb\nc\nd\ne\n", b"other\na\nb\nc\nd\ne\n", None),  # both at the same place
        (b"a\nb\nc\nd\ne", b"A\nb\nc\nd\ne\n", b"A\nb\nc\nd\ne"),
    ],
)
def test_merges(one: bytes, other: bytes, merged: bytes | None) -> None:
    assert merge(BASE, one, other) == merged
    assert merge(BASE, other, one) == merged


def test_changes_far_apart_always_merge() -> None:
    chance = random.Random(5)
    for _ in range(200):
        lines = [f"{number}\n".encode() for number in range(40)]
        one, other = list(lines), list(lines)
        one[chance.randrange(0, 18)] = b"one\n"
        del other[chance.randrange(21, 40)]
        both = [line if line in one else b"one\n" for line in lines]
        both = [line for line in both if line in other or line == b"one\n"]
        assert merge(b"".join(lines), b"".join(one), b"".join(other)) == b"".join(both)
