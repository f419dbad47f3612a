"""An edit replayed: the engine runs as always, but the model's choice is the known edited text.

Random weights say nothing sensible, so each row's argmax is replaced by the token that belongs there. Everything else
is real: every step reads the weights, drafts come from the engine's own drafters, and a wrong guess costs its rows.
"""

from __future__ import annotations

import json
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fulgur.bench.edits import Edit
from fulgur.engine.engine import Engine
from fulgur.engine.events import Finished
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.runtime import Runtime
from fulgur.engine.speculate import StepCost
from fulgur.text.tokenizer import Tokenizer

Int = npt.NDArray[np.int32]

END = "<|end|>"
VOCABULARY = 8192
# Modules that every Python has: their text resembles what is edited, and is the same everywhere.
_CORPUS = ("argparse", "ast", "dataclasses", "difflib", "inspect", "pathlib", "subprocess", "textwrap", "typing")


def write_tokenizer(folder: Path) -> None:
    """Train a byte-level vocabulary on the standard library, so that tokens are as long as a code model's."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [path.read_text(encoding="utf-8") for name in _CORPUS if (path := library / f"{name}.py").exists()]
    backend.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}), encoding="utf-8")


def tokens_of(edit: Edit, tokenizer: Tokenizer) -> tuple[list[int], list[int], list[int]]:
    """The original, the prompt (the original and the instruction) and the answer."""
    original = tokenizer.encode(edit.original, special=False)
    prompt = original + tokenizer.encode(f"\n{edit.instruction}\n", special=False)
    end = tokenizer.token_id(END)
    assert end is not None
    return original, prompt, [*tokenizer.encode(edit.edited, special=False), end]


class ForcedRuntime:
    """A runtime that does all its work and then returns what the script says."""

    streaming = prefilling = drafting = None

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self.states = runtime, runtime.states
        self.vocab_size, self.max_context = runtime.vocab_size, runtime.max_context
        self.block_tokens, self.kv_blocks, self.max_rows = runtime.block_tokens, runtime.kv_blocks, runtime.max_rows
        self.prefill_rows, self.isa, self.threads = runtime.prefill_rows, runtime.isa, runtime.threads
        self.script: Int = np.zeros(runtime.max_context + 1, np.int32)

    def step(
        self,
        tokens: Int,
        positions: Int,
        sequences: Int,
        tables: Int,
        logit_rows: Int,
        logits: npt.NDArray[np.float32] | None = None,
    ) -> Int:
        self._runtime.step(tokens, positions, sequences, tables, logit_rows, logits)
        if not len(logit_rows):
            return self.script[:0]
        after = int(positions[logit_rows[0]]) + 1  # the requested rows of one sequence are consecutive
        return self.script[after : after + len(logit_rows)]

    def copy_block(self, source: int, target: int) -> None:
        self._runtime.copy_block(source, target)

    def close(self) -> None:
        """The runtime belongs to the caller."""


@dataclass(frozen=True)
class Replayed:
    """One edit, written out again."""

    tokens: int  # after the first, which comes with the prompt
    seconds: float
    drafted: int
    accepted: int


class Replay:
    """Runs edits through one engine, as a server would; the engine keeps what it learns about step costs."""

    def __init__(self, runtime: Runtime, folder: Path, cost: StepCost) -> None:
        self._tokenizer = Tokenizer.from_folder(folder)
        self._forced = ForcedRuntime(runtime)
        self._engine = Engine(self._forced, self._tokenizer, cost=cost)

    def run(self, edit: Edit, *, speculate: bool) -> Replayed:
        original, prompt, answer = tokens_of(edit, self._tokenizer)
        self._forced.script[: len(prompt) + len(answer)] = prompt + answer
        self._engine.submit(
            GenerateRequest(
                prompt,
                SamplingParams(max_tokens=len(answer)),
                draft_source=original if speculate else None,
                speculate=speculate,
            )
        )
        finished = _run(self._engine)
        usage = finished.usage
        if finished.reason != "stop" or usage.completion_tokens != len(answer):
            raise RuntimeError(f"the replay ended with {finished.reason} after {usage.completion_tokens} tokens")
        return Replayed(len(answer) - 1, usage.decode_seconds, usage.draft_tokens, usage.accepted_tokens)


def _run(engine: Engine) -> Finished:
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Finished):
                return event
    raise RuntimeError("the engine stopped without an end")
