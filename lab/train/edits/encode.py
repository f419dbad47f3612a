"""An example as tokens with loss weights: little for the prompt, more for what changes than for what is copied."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Protocol

from fulgur.eval.tasks import EditExample
from fulgur.text.edit_format import (
    AFTER,
    CALL,
    END,
    FILE,
    INSTRUCTION,
    NOEDIT,
    RECENT,
    REGION,
    REWRITE,
    SPECIAL_IDS,
    Call,
    NoEdit,
    format_call,
    format_recent,
)

COPIED, CHANGED, DECIDING, ENDING = 1.0, 4.0, 8.0, 2.0
# The file around the region is ordinary code: it is read anyway, so the model may learn something from it.
AROUND = 0.2


class Encoder(Protocol):
    """A tokenizer that encodes all text as ordinary tokens (`lab.train.tokenizer.CodeTokenizer`)."""

    def encode(self, text: str) -> list[int]: ...


def changed_weights(old: Sequence[int], new: Sequence[int]) -> list[float]:
    """Weigh each token of `new`: CHANGED where it differs from `old`, and for the token after a deletion."""
    weights = [COPIED] * len(new)
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    before, after = old[head : len(old) - tail], new[head : len(new) - tail]
    for tag, _, _, start, end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            # After a pure deletion, the next token is the one that shows it.
            for index in range(head + start, min(head + max(end, start + 1), len(new))):
                weights[index] = CHANGED
    return weights


def encode(tokenizer: Encoder, example: EditExample, max_tokens: int = 2048) -> tuple[list[int], list[float]]:
    """Encode tokens and weights; the context is cut to fit, and an example that cannot fit gives two empty lists."""
    region = tokenizer.encode(example.region)
    tail: list[int] = []
    if example.recent:
        tail += [SPECIAL_IDS[RECENT], *tokenizer.encode(format_recent(example.recent))]
    if example.instruction is not None:
        tail += [SPECIAL_IDS[INSTRUCTION], *tokenizer.encode(example.instruction)]
    tail.append(SPECIAL_IDS[REWRITE])
    if isinstance(example.answer, NoEdit):
        answer, weights = [SPECIAL_IDS[NOEDIT]], [DECIDING]
    elif isinstance(example.answer, Call):
        answer = [SPECIAL_IDS[CALL], *tokenizer.encode(format_call(example.answer))]
        weights = [DECIDING] + [CHANGED] * (len(answer) - 1)
    else:
        answer = tokenizer.encode(example.answer.text)
        weights = changed_weights(region, answer)
        weights[:1] = [DECIDING]  # the first token decides between a rewrite, a call and no edit
    answer, weights = [*answer, SPECIAL_IDS[END]], [*weights, ENDING]

    path = tokenizer.encode(f"{example.path}\n")
    room = max_tokens - len(path) - len(region) - len(tail) - len(answer) - 3
    if room < 0:
        return [], []
    above, below = tokenizer.encode(example.above), tokenizer.encode(example.below)
    below = below[: max(room // 3, room - len(above))]
    above = above[max(0, len(above) - (room - len(below))) :]
    prompt = [SPECIAL_IDS[FILE], *path, *above, SPECIAL_IDS[REGION], *region, SPECIAL_IDS[AFTER], *below, *tail]
    around = [AROUND] * (len(path) + len(above) + 1)
    around += [0.0] * (len(region) + 2) + [AROUND] * len(below)
    return prompt + answer, around + [0.0] * len(tail) + weights
