"""The most that drafts can give in an edit replay.

Every guess that the drafters would get right is known in advance, no wrong guess is made, and the engine around the
steps takes no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fulgur.bench.edits import EDITS
from fulgur.bench.replay import tokens_of
from fulgur.engine.speculate.cost import WIDTHS
from fulgur.engine.speculate.ngram import NgramDrafter
from fulgur.engine.speculate.source import SourceDrafter
from fulgur.text.tokenizer import Tokenizer

LONGEST = WIDTHS[-1] - 1  # guesses in a step


def right_guesses(source: list[int], prompt: list[int], answer: list[int]) -> list[int]:
    """For every answer token after the first, which comes with the prompt: how many tokens from there the better
    drafter would guess right."""
    tokens = [*prompt, answer[0]]
    drafters = (SourceDrafter(source, tokens), NgramDrafter(tokens))
    right = []
    for at in range(1, len(answer)):
        most = 0
        for drafter in drafters:
            drafter.follow()
            if drafter.run < 0:
                continue
            draft = drafter.draft(LONGEST)
            same = next((i for i, (a, b) in enumerate(zip(draft, answer[at:], strict=False)) if a != b), len(draft))
            most = max(most, min(same, len(answer) - at))
        right.append(most)
        tokens.append(answer[at])
    return right


def edits_known(folder: Path) -> list[list[int]]:
    """`right_guesses` of every edit of the replay."""
    tokenizer = Tokenizer.from_folder(folder)
    return [right_guesses(*tokens_of(edit, tokenizer)) for edit in EDITS]


def least_seconds(right: Sequence[int], seconds: Mapping[int, float]) -> float:
    """The shortest time through one answer if steps of these widths take `seconds`; widths in between are
    interpolated."""
    widths = sorted(seconds)
    cost = np.interp(range(widths[-1] + 1), widths, [seconds[width] for width in widths])
    least = [0.0] * (len(right) + 1)
    for at in reversed(range(len(right))):
        # A step with n right guesses yields them and one more token, but never more than remain.
        most = min(right[at], len(right) - at - 1, len(cost) - 2)
        least[at] = min(float(cost[n + 1]) + least[at + n + 1] for n in range(most + 1))
    return least[0]
