"""Completions where people pause: before a word, inside one, at the start of a line; and while typing.

`typed` lines are entered by an ideal typist, character by character, who checks the suggestion after each and accepts
it if the line continues that way. Any other suggestion counts as wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fulgur.eval.answers import BATCH, Baseline, hole_prompt
from fulgur.eval.asker import Asker
from fulgur.eval.score import Scores
from fulgur.eval.tasks import Hole
from fulgur.text.sure import SURE

SHIPPED = Path(__file__).with_name("cursor_tasks.jsonl.xz")
KINDS = ("word", "inside_word", "line_start")
TYPED = "typed"


@dataclass(frozen=True)
class Suggestion:
    """The predicted rest of a line, and the part of it that is shown while typing."""

    text: str
    shown: str


Suggest = Callable[[Sequence[Hole]], list[Suggestion]]


def by_model(model: Asker, *, search: bool = True) -> Suggest:
    """Suggest as the product does: with a search for whole lines, without one (`search` False) while typing."""

    def suggest(holes: Sequence[Hole]) -> list[Suggestion]:
        found: list[Suggestion] = []
        for start in range(0, len(holes), BATCH):
            prompts = [hole_prompt(model, hole, True) for hole in holes[start : start + BATCH]]
            found += [Suggestion(reply.text, reply.sure(SURE)) for reply in model.ask(prompts, search=search)]
        return found

    return suggest


def by_baseline(baseline: Baseline) -> Suggest:
    """Suggest by a baseline, which always shows what it finds."""

    def suggest(holes: Sequence[Hole]) -> list[Suggestion]:
        return [Suggestion(*[baseline.fill(hole, False).split("\n", 1)[0]] * 2) for hole in holes]

    return suggest


def score_cursors(
    scores: Scores, cursors: dict[str, list[Hole]], suggest: Suggest, typed: Suggest | None = None
) -> None:
    """Score the completions; `typed` suggests while typing, if that works differently."""
    for kind in KINDS:
        holes = cursors.get(kind, [])
        for hole, found in zip(holes, suggest(holes), strict=True):
            scores.shares[f"complete.{kind}"].add(found.text.rstrip() == hole.middle.rstrip())
    if lines := cursors.get(TYPED):
        score_typing(scores, lines, typed or suggest)


def score_typing(scores: Scores, lines: list[Hole], suggest: Suggest) -> None:
    wrong = taken = 0
    for line in lines:
        text = line.middle.rstrip()
        first = len(text) - len(text.lstrip())  # the editor inserts the indentation
        asked = [Hole(line.path, line.prefix + text[:at], line.suffix, text[at:]) for at in range(first, len(text))]
        shown = [found.shown.rstrip() for found in suggest(asked)]
        at, saved = first, 0
        while at < len(text):
            one = shown[at - first]
            if one and text.startswith(one, at):
                taken += 1
                saved += len(one)
                at += len(one)
            else:
                wrong += bool(one)
                at += 1
        scores.shares["complete.saved"].add(True, saved)
        scores.shares["complete.saved"].add(False, len(text) - first - saved)
    scores.numbers["complete.wrong_per_line"] = wrong / len(lines)
    scores.numbers["complete.taken_per_line"] = taken / len(lines)
