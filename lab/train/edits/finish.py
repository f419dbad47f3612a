"""The last step of an example: the bounded context above and below its region."""

from __future__ import annotations

import random

from fulgur.edit.refactor.source import Source
from fulgur.eval.tasks import EditExample
from fulgur.text.edit_format import Answer
from lab.train.edits.phrase import Instruction

ABOVE_CHARS = (0, 120, 300, 800, 1500)
BELOW_CHARS = (0, 100, 250, 600)


def finish(
    src: Source,
    name: str,
    region: tuple[int, int],
    before: str,
    answer: Answer,
    written: Instruction,
    split: str,
    rng: random.Random,
    text: str | None = None,
) -> EditExample:
    """Add the bounded context above and below."""
    whole = src.text if text is None else text
    above, below = context(whole, region, rng.choice(ABOVE_CHARS), rng.choice(BELOW_CHARS))
    return EditExample(
        name,
        src.path,
        above,
        before,
        below,
        (),
        written.text,
        answer,
        written.phrasing,
        written.heldout,
        split == "heldout_op",
        file=None if split == "train" else (whole[: region[0]], whole[region[1] :]),
    )


def context(text: str, region: tuple[int, int], above_chars: int, below_chars: int) -> tuple[str, str]:
    """The whole lines before and after a region, within these sizes."""
    start = max(0, region[0] - above_chars)
    if start > 0:
        start = text.find("\n", start - 1, region[0]) + 1 or region[0]
    end = min(len(text), region[1] + below_chars)
    if end < len(text):
        end = max(text.rfind("\n", region[1], end) + 1, region[1])
    return text[start : region[0]], text[region[1] : end]
