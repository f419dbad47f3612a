"""What the drafting head of a trained hybrid is worth on this CPU: acceptance, speed, and the same text without it.

    python -m lab.train drafting FOLDER --json drafting.json [--tasks 60]
The tasks are those of `fulgur eval model`, of packages that nobody trained on: `code` goes on behind the text before a
hole, `completions` write what is hidden, `edits` answer instructions, `next` follow recent edits. For each kind:

    acceptance.KIND.N   share of drafts whose N-th guess is right among those whose guesses before it were, asked behind
                        every token of the model's greedy text
    tok_s.KIND.HOW      plain; others (n-grams and the region of an edit); head (with n-grams); head+source (all)
    drafted.KIND.HOW    share of the tokens that were accepted drafts
Each way of decoding must write the same text; the command fails where one does not. Ways take turns prompt by prompt,
so a busy machine slows all of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fulgur.engine.engine import Engine
from fulgur.engine.events import Counts, Finished, Token
from fulgur.engine.load import open_tokenizer
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.speculate import measure_cost
from fulgur.errors import FulgurError
from fulgur.eval.answers import COMPLETION_TOKENS
from fulgur.eval.tasks import SHIPPED, EditExample, Hole, Tasks, read_tasks
from fulgur.kernels.cpu.native import Runtime
from fulgur.model.weights import load
from fulgur.text.code_prompt import CodePrompt, completion_request, edit_request, trained_suffix_first
from fulgur.text.edit_format import END, EOS, FILE, SPECIAL_IDS, encode_pieces
from fulgur.text.tokenizer import Tokenizer

GUESSES, BLOCKS = 3, 64
CODE_PROMPT, CODE_ANSWER = 600, 128  # tokens of code that is gone on with
STOPS = (SPECIAL_IDS[END], SPECIAL_IDS[EOS])


@dataclass(frozen=True)
class Ask:
    """A prompt in tokens, how much may follow, and the region that an edit is drafted from."""

    tokens: list[int]
    most: int
    source: list[int] | None = None

    def request(self, how: str) -> GenerateRequest:
        source = self.source if how in ("others", "head+source") else None
        params = SamplingParams(max_tokens=self.most, stop_tokens=STOPS)
        return GenerateRequest(self.tokens, params, draft_source=source, speculate=how != "plain")


class Asks:
    """The prompts of each kind, as the product and the training write them."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, context: int) -> None:
        self.tokenizer, self.context = tokenizer, context
        self.suffix_first = trained_suffix_first(folder)

    def of(self, tasks: Tasks, count: int) -> dict[str, list[Ask]]:
        holes, edits = some(tasks.multi, count), [edit for found in tasks.edits.values() for edit in found]
        return {
            "code": [self._code(hole.path, hole.prefix) for hole in holes],
            "completions": [self._completion(hole) for hole in holes],
            "edits": self._edits(some(edits, count)),
            "next": self._edits(some(tasks.next_edits, count)),
        }

    def _code(self, path: str, prefix: str) -> Ask:
        most = min(CODE_PROMPT, self.context - CODE_ANSWER - 1)
        text = self.tokenizer.encode(f"{path}\n{prefix}", special=False)[:most]
        return Ask([SPECIAL_IDS[FILE], *text], CODE_ANSWER)

    def _completion(self, hole: Hole) -> Ask:
        prompt = completion_request(
            self._count, self.context, hole.path, hole.prefix, hole.suffix, COMPLETION_TOKENS,
            one_line=False, suffix_first=self.suffix_first,
        )  # fmt: skip
        return self._ask(prompt)

    def _edits(self, examples: Sequence[EditExample]) -> list[Ask]:
        found = []
        for e in examples:
            try:
                prompt = edit_request(
                    self._count, self.context, e.path, e.above, e.region, e.below, e.instruction, e.recent
                )
            except FulgurError:  # does not fit the context
                continue
            found.append(self._ask(prompt))
        return found

    def _ask(self, prompt: CodePrompt) -> Ask:
        source = None if prompt.source is None else self.tokenizer.encode(prompt.source, special=False)
        return Ask(encode_pieces(self.tokenizer, prompt.pieces), prompt.max_tokens, source)

    def _count(self, text: str) -> int:
        return len(self.tokenizer.encode(text, special=False))


def some(found: list[Any], count: int) -> list[Any]:
    """So many of a list, from all over it."""
    return found[:: max(1, len(found) // count)][:count]


@dataclass
class Tally:
    tokens: int = 0
    accepted: int = 0
    seconds: float = 0.0

    def add(self, counts: Counts) -> None:
        self.tokens += max(counts.completion_tokens - 1, 0)  # the first one belongs to the prompt
        self.accepted += counts.accepted_tokens
        self.seconds += counts.decode_seconds


def answer(engine: Engine, request: GenerateRequest) -> tuple[list[int], Counts]:
    engine.submit(request)
    said: list[int] = []
    counts: Counts | None = None
    while counts is None:
        for event in engine.step():
            if isinstance(event, Token):
                said.append(event.token)
            elif isinstance(event, Finished):
                counts = event.usage
    return said, counts


def guessed(runtime: Runtime, prompt: list[int], said: list[int], total: list[list[int]]) -> None:
    """Ask the head behind every token of a text: drafts that reach the N-th guess, and those that have it right."""
    tokens = np.array(prompt + said, np.int32)
    table = np.arange(runtime.kv_blocks, dtype=np.int32)[None]

    def feed(start: int, end: int) -> None:
        for first in range(start, end, runtime.prefill_rows):
            rows = np.arange(first, min(end, first + runtime.prefill_rows), dtype=np.int32)
            runtime.step(tokens[rows], rows, np.zeros_like(rows), table, rows[:0])

    feed(0, len(prompt) - 1)
    for at in range(len(prompt) - 1, len(tokens) - 1):
        found = runtime.draft(int(tokens[at]), at, 0, table, min(GUESSES, len(tokens) - 1 - at))
        for counts, guess, truth in zip(total, found, tokens[at + 1 :], strict=False):
            counts[0] += 1
            if guess != truth:
                break
            counts[1] += 1
        feed(at, at + 1)


def measure(folder: Path, tasks: Tasks, count: int, threads: int | None = None) -> dict[str, float]:
    tokenizer, found = open_tokenizer(folder), dict[str, float]()
    engines: dict[bool, Engine] = {}
    for drafts in (False, True):
        runtime = Runtime(load(folder, drafts=drafts), kv_blocks=BLOCKS, threads=threads, snapshots=4)
        engines[drafts] = Engine(runtime, tokenizer, cost=measure_cost(runtime))
    asking = Runtime(load(folder), kv_blocks=BLOCKS, threads=threads)
    ways = {"plain": False, "others": False, "head": True, "head+source": True}
    for kind, asks in Asks(folder, tokenizer, engines[True].context).of(tasks, count).items():
        tallies, total = {how: Tally() for how in ways}, [[0, 0] for _ in range(GUESSES)]
        for ask in asks:
            text: list[int] | None = None
            for how, drafts in ways.items():
                said, counts = answer(engines[drafts], ask.request(how))
                if text not in (None, said):
                    raise FulgurError(f"{kind}: {how} changed the text", hint="This is a defect: please report it.")
                text = said
                tallies[how].add(counts)
            guessed(asking, ask.tokens, text or [], total)
        for n, (reached, right) in enumerate(total, 1):
            found[f"acceptance.{kind}.{n}"] = right / max(reached, 1)
        for how, tally in tallies.items():
            found[f"tok_s.{kind}.{how}"] = tally.tokens / max(tally.seconds, 1e-9)
            found[f"drafted.{kind}.{how}"] = tally.accepted / max(tally.tokens, 1)
        found[f"tokens.{kind}"] = tallies["plain"].tokens
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.train drafting", description="What a drafting head is worth.")
    parser.add_argument("model", type=Path, help="a folder that `export pack` wrote")
    parser.add_argument("--tasks", type=int, default=60, help="prompts of a kind")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    found = measure(args.model, read_tasks(SHIPPED), args.tasks, args.threads)
    for name, value in found.items():
        print(f"{name:<36} {value:10.3f}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
