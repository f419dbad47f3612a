"""The bound on what drafts can give: worked out by hand, and never below what a real replay needs."""

from pathlib import Path

import pytest

from fulgur.bench.edits import EDITS
from fulgur.bench.foresight import LONGEST, edits_known, least_seconds, right_guesses
from fulgur.bench.replay import write_tokenizer


def test_guesses_follow_the_source_up_to_the_change() -> None:
    source = list(range(10, 30))
    answer = [*source[:8], 99, *source[9:]]  # one token differs
    right = right_guesses(source, [*source, 1, 2], answer)
    assert len(right) == len(answer) - 1
    assert right[:7] == [7, 6, 5, 4, 3, 2, 1]  # up to the change, which nobody knows
    assert right[7] == 0
    assert right[-1] == 1 and right[-2] == 2  # followed again, and not beyond the end


def test_the_quickest_way() -> None:
    cost = {1: 1.0, 2: 1.1, 4: 2.0}
    assert least_seconds([0, 0, 0], cost) == 3.0
    assert least_seconds([1, 0, 0], cost) == pytest.approx(2.1)  # two tokens, then one
    assert least_seconds([3, 2, 1, 0], cost) == pytest.approx(2.0)  # all four at once
    assert least_seconds([2, 1, 0], cost) == pytest.approx(1.55)  # a width between two measured ones
    assert least_seconds([3, 2, 1, 0], {1: 1.0, 2: 1.9, 4: 4.0}) == pytest.approx(3.8)
    assert least_seconds([], cost) == 0


def test_every_edit_of_the_replay(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    known = edits_known(tmp_path)
    assert len(known) == len(EDITS)
    assert all(max(right) == LONGEST and min(right) == 0 for right in known)
