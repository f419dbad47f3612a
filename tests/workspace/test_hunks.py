"""Changes by hunk: what is taken and what is left, line by line."""

from __future__ import annotations

import random
from pathlib import Path

from fulgur.workspace.files import Change
from fulgur.workspace.hunks import hunks_of, without

PLACE = Path("/w/a.txt")


def test_what_is_taken_is_new_and_what_is_left_is_old() -> None:
    chance = random.Random(7)
    for _ in range(200):
        before = [chance.choice("abcdef") for _ in range(chance.randrange(1, 30))]
        after = [line if chance.random() < 0.7 else chance.choice(("x", "y\nz", "")) for line in before] + ["end"]
        change = Change(PLACE, "\n".join(before).encode(), "\n".join(after).encode())
        hunks = hunks_of([change], lambda path: path.name)
        assert without([change], hunks, []) == [change]
        assert without([change], hunks, range(len(hunks))) == []
        rejected = {place for place in range(len(hunks) - 1) if chance.random() < 0.5}
        wanted, new = list(before), "\n".join(after).split("\n")
        for place, hunk in reversed(list(enumerate(hunks))):
            if place not in rejected and hunk.run is not None:
                a, b, c, d = hunk.run
                wanted[a:b] = new[c:d]
        assert [part.after for part in without([change], hunks, rejected)] == ["\n".join(wanted).encode()]


def test_a_file_that_comes_goes_or_is_no_text_is_one_hunk() -> None:
    changes = [Change(PLACE, None, b"a\nb\n"), Change(PLACE, b"a\n", None), Change(PLACE, b"\0a", b"\0b")]
    hunks = hunks_of(changes, lambda path: path.name)
    assert [(hunk.change, hunk.run) for hunk in hunks] == [(0, None), (1, None), (2, None)]
    assert without(changes, hunks, [1]) == [changes[0], changes[2]]


def test_line_endings_stay_those_of_their_line() -> None:
    change = Change(PLACE, b"a\r\nb\nc", b"A\r\nb\nC\nd\n")
    hunks = hunks_of([change], lambda path: path.name)
    assert len(hunks) == 2
    assert without([change], hunks, [1])[0].after == b"A\r\nb\nc"
    assert without([change], hunks, [0])[0].after == b"a\r\nb\nC\nd\n"
    assert hunks[1].diff == "--- a/a.txt\n+++ b/a.txt\n@@ -2,2 +2,3 @@\n b\n-c\n+C\n+d\n"
