"""Collect the answers to the tasks: from a model through the engine, in batches, or from a baseline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from fulgur.errors import FulgurError
from fulgur.eval.asker import Asker
from fulgur.eval.grade import check
from fulgur.eval.tasks import EditExample, Hole, Tasks
from fulgur.text.code_prompt import CodePrompt, completion_request, edit_request
from fulgur.text.edit_format import NOEDIT, answer_pieces

BATCH = 24
KV_TOKENS = BATCH * 1536
COMPLETION_TOKENS = 96


@dataclass
class Answers:
    """The answers of one answerer, in the order of the tasks; special tokens are spelled out."""

    edits: dict[str, list[str]]
    noops: list[str]
    next_edits: list[str]
    single: list[str]
    multi: list[str]

    @classmethod
    def of(cls, tasks: Tasks, written: list[str]) -> Answers:
        """Group answers that are in the order of `prompts`."""
        rest = iter(written)

        def take(count: int) -> list[str]:
            return [next(rest) for _ in range(count)]

        edits = {split: take(len(found)) for split, found in tasks.edits.items()}
        noops, following = take(len(tasks.noops)), take(len(tasks.next_edits))
        return cls(edits, noops, following, take(len(tasks.single)), take(len(tasks.multi)))

    def in_order(self) -> list[str]:
        """All answers in the order of `prompts`."""
        edits = [text for found in self.edits.values() for text in found]
        return [*edits, *self.noops, *self.next_edits, *self.single, *self.multi]


class Baseline(Protocol):
    name: str

    def edit(self, example: EditExample) -> str: ...
    def fill(self, hole: Hole, several: bool) -> str: ...


def prompts(model: Asker, tasks: Tasks) -> list[CodePrompt | None]:
    """All prompts in a fixed order; None if the region does not fit the context, which counts as no edit."""
    edits = [*(e for found in tasks.edits.values() for e in found), *tasks.noops, *tasks.next_edits]
    holes = [*((hole, True) for hole in tasks.single), *((hole, False) for hole in tasks.multi)]
    return [*(edit_prompt(model, e) for e in edits), *(hole_prompt(model, hole, one) for hole, one in holes)]


def edit_prompt(model: Asker, e: EditExample) -> CodePrompt | None:
    try:
        return edit_request(
            model.count, model.context, e.path, e.above, e.region, e.below, e.instruction, e.recent
        )  # fmt: skip
    except FulgurError:
        return None


def hole_prompt(model: Asker, hole: Hole, one_line: bool) -> CodePrompt:
    return completion_request(
        model.count, model.context, hole.path, hole.prefix, hole.suffix, COMPLETION_TOKENS,
        one_line=one_line, suffix_first=model.suffix_first,
    )  # fmt: skip


def ask_model(model: Asker, tasks: Tasks, say: Callable[[str], None]) -> tuple[Answers, dict[str, float]]:
    """The model's answers, and its speed."""
    asked = prompts(model, tasks)
    written: list[str] = []
    tokens = accepted = 0
    began = time.perf_counter()
    for start in range(0, len(asked), BATCH):
        part = asked[start : start + BATCH]
        replies = iter(model.ask([ask for ask in part if ask is not None]))
        for ask in part:
            if ask is None:
                written.append(NOEDIT)
                continue
            reply = next(replies)
            written.append(reply.text)
            tokens += reply.tokens
            accepted += reply.accepted
        say(f"{model.folder.name}: {len(written)}/{len(asked)} answers, {time.perf_counter() - began:.0f} s")
    seconds = time.perf_counter() - began
    speeds = {"answers_per_second": len(asked) / seconds, "drafted_share": accepted / max(tokens, 1)}
    return Answers.of(tasks, written), speeds


def ask_baseline(baseline: Baseline, tasks: Tasks) -> Answers:
    return Answers(
        {split: [baseline.edit(example) for example in found] for split, found in tasks.edits.items()},
        [baseline.edit(example) for example in tasks.noops],
        [baseline.edit(example) for example in tasks.next_edits],
        [baseline.fill(hole, False) for hole in tasks.single],
        [baseline.fill(hole, True) for hole in tasks.multi],
    )


def transcript(label: str, tasks: Tasks, answers: Answers) -> Iterator[dict[str, Any]]:
    """Every task with its answer, for people to read."""
    edits = [(split, tasks.edits[split], answers.edits[split]) for split in tasks.edits]
    others = [("noop", tasks.noops, answers.noops), ("next", tasks.next_edits, answers.next_edits)]
    for split, examples, texts in [*edits, *others]:
        for example, written in zip(examples, texts, strict=True):
            wanted = "".join(str(getattr(piece, "token", piece)) for piece in answer_pieces(example.answer))
            yield {"model": label, "split": split, "op": example.op, "passed": check(example, written),
                   "instruction": example.instruction, "recent": [[e.before, e.after] for e in example.recent],
                   "path": example.path, "above": example.above, "region": example.region, "below": example.below,
                   "wanted": wanted, "written": written}  # fmt: skip
    for split, holes, texts in (("single", tasks.single, answers.single), ("multi", tasks.multi, answers.multi)):
        for hole, written in zip(holes, texts, strict=True):
            yield {"model": label, "split": split, "path": hole.path, "prefix": hole.prefix, "suffix": hole.suffix,
                   "wanted": hole.middle, "written": written}  # fmt: skip
