"""Which lines differ."""

from __future__ import annotations

import random

from fulgur.workspace.diff import changed_runs


def test_the_runs_rebuild_the_new_text() -> None:
    rng = random.Random(1)
    for _ in range(300):
        old = [rng.choice("abcdef\n") for _ in range(rng.randrange(40))]
        new = list(old)
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(new) + 1)
            new[at : at + rng.randrange(3)] = [rng.choice("abcxyz") for _ in range(rng.randrange(3))]
        built = list(old)
        for a, b, c, d in reversed(changed_runs(old, new)):
            assert old[a:b] != new[c:d]
            built[a:b] = new[c:d]
        assert built == new


def test_far_changes_are_apart_and_neighbours_together() -> None:
    old = [str(n) for n in range(1000)]
    new = list(old)
    new[3], new[4], new[900] = "x", "y", "z"
    assert changed_runs(old, new) == [(3, 5, 3, 5), (900, 901, 900, 901)]
    assert changed_runs(old, [*old[:500], "new", *old[500:]]) == [(500, 500, 500, 501)]
    assert changed_runs(old, old) == []
