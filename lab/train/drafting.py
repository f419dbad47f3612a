"""What the drafting head of a trained hybrid is worth: acceptance, speed, and the same text without it.

    python -m lab.train drafting PACKED --json drafting.json [--tasks 60]
    python -m lab.train drafting FLOAT --device cuda --json drafting.json      # a folder of `export float`
The tasks are those of `fulgur eval model`, from packages outside the training data: `code` continues the text before a
hole, `completions` write what is hidden, `edits` answer instructions, `next` follow recent edits. For each kind:

    acceptance.KIND.N   fraction of drafts whose N-th guess is right among those whose earlier guesses were, queried
                        after every token of the model's greedy text
    tok_s.KIND.HOW      plain; others (n-grams and the region of an edit); head (with n-grams); head+source (all)
    drafted.KIND.HOW    fraction of the tokens that were accepted drafts
    kept.KIND.HOW       fraction of the drafted tokens that were accepted
    changed.KIND        texts that differ from plain decoding in one of the ways; the command fails if there are any
Ways take turns prompt by prompt, so a busy machine slows all of them. Each has its own engine, so none finds a prompt
that another one computed. `plain` and `others` run the model without its head. Besides the project it needs only what a
bare GPU machine has.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fulgur.engine.engine import Engine
from fulgur.engine.events import Counts, Finished, Token
from fulgur.engine.load import open_tokenizer
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.speculate import measure_cost
from fulgur.errors import FulgurError
from fulgur.eval.answers import COMPLETION_TOKENS
from fulgur.eval.tasks import SHIPPED, EditExample, Hole, Tasks, read_tasks
from fulgur.text.code_prompt import CodePrompt, completion_request, edit_request
from fulgur.text.edit_format import END, EOS, FILE, SPECIAL_IDS, encode_pieces
from fulgur.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fulgur.kernels.cpu.native import Runtime as CpuRuntime
    from fulgur.kernels.cuda.family_runtime import FamilyRuntime

    Runtime = CpuRuntime | FamilyRuntime
    Opener = Callable[[bool], Runtime]  # the argument: with or without the head

WAYS = {"plain": False, "others": False, "head": True, "head+source": True}  # whether each has the head
GUESSES, BLOCKS = 3, 64
CODE_PROMPT, CODE_ANSWER = 500, 200  # tokens of the code to continue, and of the continuation
STOPS = (SPECIAL_IDS[END], SPECIAL_IDS[EOS])


@dataclass(frozen=True)
class Ask:
    """A prompt in tokens, how many tokens may follow, and the region that an edit is drafted from."""

    tokens: list[int]
    most: int
    source: list[int] | None = None

    def request(self, how: str) -> GenerateRequest:
        source = self.source if how in ("others", "head+source") else None
        params = SamplingParams(max_tokens=self.most, stop_tokens=STOPS)
        return GenerateRequest(self.tokens, params, draft_source=source, speculate=how != "plain")


class Asks:
    """The prompts of each kind, as the product and the training write them."""

    def __init__(self, tokenizer: Tokenizer, context: int) -> None:
        self.tokenizer, self.context = tokenizer, context

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
            one_line=False, suffix_first=True,
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
    """Take this many items from all over a list."""
    return found[:: max(1, len(found) // count)][:count]


@dataclass
class Tally:
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0

    def add(self, counts: Counts) -> None:
        self.tokens += max(counts.completion_tokens - 1, 0)  # the first one belongs to the prompt
        self.drafted += counts.draft_tokens
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
    """Query the head after every token of a text; count drafts that reach the N-th guess, and those that have it
    right."""
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


def on_cpu(folder: Path, threads: int | None = None) -> Opener:
    from fulgur.kernels.cpu.native import Runtime as CpuRuntime
    from fulgur.model.weights import load

    return lambda head: CpuRuntime(load(folder, drafts=head), kv_blocks=BLOCKS, threads=threads, snapshots=4)


def on_gpu(folder: Path, bits: int | None, temporary: Path) -> Opener:
    from fulgur.kernels.cuda.open import open_folder

    without_head(folder, temporary)

    def opened(head: bool) -> Runtime:
        runtime = open_folder(folder if head else temporary, bits=bits, kv_tokens=BLOCKS * 64)
        return cast("FamilyRuntime", runtime)  # a hybrid: the decode kernels do not have it

    return opened


def without_head(folder: Path, out: Path) -> None:
    """Copy the folder as if no head had been trained. A head that is merely unused still follows the text."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    del config["mtp_num_hidden_layers"], config["draft_vocab_size"]
    (out / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if not k.startswith("mtp.")}, out / "model.safetensors")


def measure(opened: Opener, tokenizer: Tokenizer, tasks: Tasks, count: int) -> Iterator[tuple[str, float]]:
    """Yield rows as soon as they are known."""
    runtimes = {how: opened(head) for how, head in WAYS.items()}
    engines = {how: Engine(r, tokenizer, cost=measure_cost(r)) for how, r in runtimes.items()}
    asks = Asks(tokenizer, engines["head"].context).of(tasks, count)
    texts: dict[str, list[list[int]]] = {}
    for kind, every in asks.items():
        tallies, texts[kind], changed = {how: Tally() for how in WAYS}, [], 0
        for ask in every:
            said = []
            for how, engine in engines.items():
                text, counts = answer(engine, ask.request(how))
                tallies[how].add(counts)
                said.append(text)
            changed += any(text != said[0] for text in said)
            texts[kind].append(said[0])
        for how, tally in tallies.items():
            yield f"tok_s.{kind}.{how}", tally.tokens / max(tally.seconds, 1e-9)
            yield f"drafted.{kind}.{how}", tally.accepted / max(tally.tokens, 1)
            yield f"kept.{kind}.{how}", tally.accepted / max(tally.drafted, 1)
        yield f"tokens.{kind}", tallies["plain"].tokens
        yield f"changed.{kind}", changed
    for kind, every in asks.items():  # now that no engine needs what its runtime holds
        total = [[0, 0] for _ in range(GUESSES)]
        for ask, text in zip(every, texts[kind], strict=True):
            guessed(runtimes["head"], ask.tokens, text, total)
        for n, (reached, right) in enumerate(total, 1):
            yield f"acceptance.{kind}.{n}", right / max(reached, 1)
    for engine in engines.values():
        engine.close()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.train drafting", description="Measure the speed-up from a drafting head."
    )
    parser.add_argument("model", type=Path, help="a folder that `export pack` wrote, or `export float` for a GPU")
    parser.add_argument("--tasks", type=int, default=60, help="prompts of each kind")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--bits", type=int, choices=(4, 8, 16), help="bits of the GPU's weights (default: as stored)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        if args.device == "cpu":
            opened = on_cpu(args.model, args.threads)
        else:
            opened = on_gpu(args.model, args.bits, Path(temporary))
        found: dict[str, float] = {}
        for name, value in measure(opened, open_tokenizer(args.model), read_tasks(SHIPPED), args.tasks):
            found[name] = value
            print(f"{name:<36} {value:10.3f}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    if any(value for name, value in found.items() if name.startswith("changed.")):
        raise FulgurError("drafts changed the text", hint="This is a defect: please report it.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
