"""Turn answers into scores: passes, stray lines, false edits, parse validity, exact matches, with 95% intervals."""

from __future__ import annotations

import difflib
import math
from collections import defaultdict
from dataclasses import dataclass, field

from fulgur.eval.answers import Answers
from fulgur.eval.grade import check, normal, parses, same_text, settled
from fulgur.eval.tasks import EditExample, Hole, Tasks
from fulgur.text.edit_format import NoEdit, Rewrite, parse_answer


@dataclass
class Share:
    """A proportion, in percent, with a Wilson 95% interval."""

    hits: int = 0
    total: int = 0

    def add(self, hit: bool, weight: int = 1) -> None:
        self.hits += weight * hit
        self.total += weight

    @property
    def value(self) -> float:
        return 100 * self.hits / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        if not self.total:
            return 0.0, 100.0
        n, p, z = self.total, self.hits / self.total, 1.959964
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return 100 * max(0.0, centre - half), 100 * min(1.0, centre + half)


@dataclass
class Scores:
    """All scores of one answerer."""

    shares: dict[str, Share] = field(default_factory=lambda: defaultdict(Share))
    by_op: dict[str, dict[str, Share]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(Share)))
    numbers: dict[str, float] = field(default_factory=dict)  # scores that are not proportions
    similarity: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def score(tasks: Tasks, answers: Answers) -> Scores:
    scores = Scores()
    for split, examples in tasks.edits.items():
        for example, written in zip(examples, answers.edits.get(split, []), strict=False):
            score_edit(scores, split, example, written)
    for example, written in zip(tasks.noops, answers.noops, strict=False):
        answer = settled(example, written)
        kept = isinstance(answer, NoEdit) or (isinstance(answer, Rewrite) and same_text(answer.text, example.region))
        scores.shares["false_edit"].add(not kept)
        if isinstance(answer, Rewrite):
            scores.shares["parse"].add(parses(answer.text))
    for example, written in zip(tasks.next_edits, answers.next_edits, strict=False):
        score_next(scores, example, written)
    for kind, holes, texts in (("single", tasks.single, answers.single), ("multi", tasks.multi, answers.multi)):
        for hole, written in zip(holes, texts, strict=False):
            score_hole(scores, kind, hole, written)
    return scores


def score_edit(scores: Scores, split: str, example: EditExample, written: str) -> None:
    passed = check(example, written)
    scores.shares[f"ops.{split}"].add(passed)
    scores.by_op[example.op][split].add(passed)
    answer = settled(example, written)
    unchanged = isinstance(answer, NoEdit) or (isinstance(answer, Rewrite) and same_text(answer.text, example.region))
    scores.shares["unedited"].add(unchanged)
    if isinstance(answer, Rewrite):
        scores.shares["parse"].add(parses(answer.text))
        if example.target is not None:
            scores.shares["exact"].add(normal(answer.text) == normal(example.target))
            stray, kept = stray_lines(example.region, example.target, answer.text)
            scores.shares["stray"].hits += stray
            scores.shares["stray"].total += kept
            scores.shares["stray_examples"].add(stray > 0)


def stray_lines(region: str, target: str, produced: str) -> tuple[int, int]:
    """How many of the lines that the target keeps the answer changed or lost, and how many the target keeps."""
    before = normal(region).split("\n")

    def kept(after: str) -> set[int]:
        matcher = difflib.SequenceMatcher(None, before, normal(after).split("\n"), autojunk=False)
        return {i for a, _, n in matcher.get_matching_blocks() for i in range(a, a + n)}

    wanted = {i for i in kept(target) if before[i].strip()}
    return len(wanted - kept(produced)), len(wanted)


def score_next(scores: Scores, example: EditExample, written: str) -> None:
    """Score location and content of the next edit separately; "nothing left to do" counts for both."""
    answer = parse_answer(written)
    passed = check(example, written)
    scores.shares["next.content"].add(passed)
    if isinstance(example.answer, Rewrite) and isinstance(answer, Rewrite):
        same = changed_lines(example.region, example.answer.text) == changed_lines(example.region, answer.text)
    else:
        same = passed
    scores.shares["next.location"].add(same)


def changed_lines(before: str, after: str) -> set[int]:
    matcher = difflib.SequenceMatcher(None, before.split("\n"), after.split("\n"), autojunk=False)
    return {i for tag, a, b, _, _ in matcher.get_opcodes() if tag != "equal" for i in range(a, max(b, a + 1))}


def score_hole(scores: Scores, kind: str, hole: Hole, written: str) -> None:
    answer = written if kind == "multi" else written.split("\n", 1)[0]
    scores.shares[f"fim.{kind}"].add(normal(answer) == normal(hole.middle))
    scores.similarity[kind].append(difflib.SequenceMatcher(None, normal(answer), normal(hole.middle)).ratio())
