"""The interfaces that the engine needs from the kernels, the tokenizer and the grammar."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from fulgur.engine.states import StateStore

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint32]  # one bit per token, the lowest first
Logprob: TypeAlias = tuple[float, tuple[tuple[int, float], ...]]  # a token's log-probability; the likeliest with theirs
SEEN = 1 << 31


class History:
    """What penalties look at: per token, how often it was generated, plus SEEN if it occurs anywhere in the text."""

    def __init__(self, vocab_size: int) -> None:
        self.held: Bits = np.zeros(vocab_size, np.uint32)
        self.device: Any = None  # a copy on the device, to which `pending` is still to be added
        self.pending: list[int] = []

    def add(self, token: int) -> None:
        self.held[token] = (int(self.held[token]) + 1) | SEEN
        if self.device is not None:
            self.pending.append(token)


@dataclass(slots=True)
class Sampling:
    """How to choose the tokens of a sequence, on the host (`sample.py`) or on a device that can."""

    sharpness: float = 0.0  # 1 / temperature; 0: the likeliest token
    seed: int = 0  # as `gumbel.base` makes it
    top_k: int = 0
    top_p: float = 1.0
    floor: float = -math.inf  # ln(min_p)
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    logprobs: int = -1  # how many alternatives to report; -1: no log-probabilities at all
    bias: FloatArray | None = None  # by token
    history: History | None = None  # None: no penalties
    grammar: bool = False  # every token has a mask

    @property
    def narrows(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0 or self.floor > -math.inf

    @property
    def plain(self) -> bool:
        """Whether there is a temperature and nothing else."""
        changed = self.bias is not None or self.history is not None or self.grammar
        return self.sharpness > 0 and not (self.narrows or changed or self.logprobs >= 0)

    @property
    def steady(self) -> bool:
        """Whether nothing but its position changes from token to token."""
        return self.history is None and self.logprobs < 0 and not self.grammar


@dataclass(slots=True)
class RowChoice:
    """One row of a step whose token the device is to choose."""

    sampling: Sampling
    position: int  # of the token
    draft: list[int] = field(default_factory=list)  # guesses between the sequence's last token and this row
    mask: Bits | None = None


class Runtime(Protocol):
    """One loaded model. A row's result is bit-identical whatever else is in the step."""

    vocab_size: int
    max_context: int
    block_tokens: int
    kv_blocks: int
    max_rows: int
    prefill_rows: int  # rows of a prompt in a step when nothing decodes
    isa: str  # what runs the kernels, for display
    threads: int

    @property
    def streaming(self) -> StreamingRuntime | None:
        """This runtime if it can decode without the host, else None."""
        ...

    @property
    def prefilling(self) -> PrefillingRuntime | None:
        """This runtime if it can compute a prompt beside steps, else None."""
        ...

    @property
    def states(self) -> StateStore | None:
        """The recurrent states if any layer has one, else None; a slot is the row of a sequence in `tables`."""
        ...

    @property
    def drafting(self) -> DraftingRuntime | None:
        """This runtime if the model has a head that drafts, else None."""
        ...

    def step(
        self,
        tokens: IntArray,
        positions: IntArray,
        sequences: IntArray,
        tables: IntArray,
        logit_rows: IntArray,
        logits: FloatArray | None = None,
    ) -> IntArray: ...

    def copy_block(self, source: int, target: int) -> None: ...

    def close(self) -> None: ...


class DraftingRuntime(Protocol):
    """A runtime whose model guesses its own next tokens (MTP). Only speed depends on the guesses."""

    def draft(self, token: int, position: int, sequence: int, tables: IntArray, length: int) -> list[int]:
        """Guess what follows `token`, which is at `position` and not computed yet: at most `length` tokens, none if
        too little is known. The table has blocks for all of them."""
        ...

    def catch_up(self, sequence: int, tables: IntArray) -> None:
        """Before a sequence is released: run the head on what it has not seen, so that its blocks can be shared."""
        ...


class TokenStream(Protocol):
    """A sequence that decodes by itself on the device. Until it has ended, nothing else on the runtime is called."""

    ended: bool

    def read(self) -> list[int]:
        """The tokens since the last call, waiting for at least one; none only when the run has ended."""
        ...

    def logprobs(self) -> list[Logprob]:
        """The log-probabilities of the tokens that the last `read` or `stop` returned."""
        ...

    def allow(self, mask: Bits) -> None:
        """Under a grammar, say what the next token may be. The step that computes its logits is already under way."""
        ...

    def stop(self) -> list[int]:
        """End it at its next step, wait until the device is idle, and return the tokens that were not read."""
        ...


class ChainedRuntime(Protocol):
    """Chained steps over several sequences: each step continues from the tokens that the one before it chose. Until the
    last step has been taken, the engine calls nothing else on the runtime."""

    def begin(
        self,
        tokens: IntArray,
        positions: IntArray,
        sequences: IntArray,
        tables: IntArray,
        choices: Sequence[RowChoice | None],
    ) -> bool:
        """Queue a step that chooses each row's token as `choices` says. False if these rows cannot run this way."""
        ...

    def follow(self, tables: IntArray) -> None:
        """Queue the same rows again, one position further, after the one step under way."""
        ...

    def take(self) -> list[int]:
        """Wait for the oldest step under way and return the tokens of its rows."""
        ...


class StreamingRuntime(Runtime, Protocol):
    """A runtime that decodes without the host and chooses tokens itself: the same ones that `sample.py` would."""

    @property
    def chained(self) -> ChainedRuntime | None:
        """The chained steps over several sequences, if the runtime has them, else None."""
        ...

    def stream(
        self,
        token: int,
        position: int,
        table: IntArray,
        stop: Collection[int],
        limit: int,
        sampling: Sampling | None = None,
        slot: int = 0,
    ) -> TokenStream:
        """Continue from `token` at `position` for at most `limit` tokens, for which `table` has blocks. The run may end
        after a stop token or go past it: the reader has to check. Without `sampling` the likeliest tokens are taken.
        `slot` holds the sequence's recurrent state."""
        ...

    def choose(
        self,
        tokens: IntArray,
        positions: IntArray,
        sequences: IntArray,
        tables: IntArray,
        logit_rows: IntArray,
        choices: Sequence[RowChoice | None],
    ) -> tuple[IntArray, list[Logprob | None]]:
        """Like `step`, with the token of each of `logit_rows` chosen as `choices` says (None: the likeliest)."""
        ...


class PrefillRun(Protocol):
    """A prompt under way, in parts that are queued on the device."""

    done: bool
    failed: bool  # for lack of memory
    time_fraction: float | None  # set before a step: queue parts that take this fraction of the time after its rows

    def finish(self) -> None:
        """Queue all the remaining parts."""
        ...

    def close(self) -> None:
        """Drop the parts that are not queued yet."""
        ...


class PrefillingRuntime(Runtime, Protocol):
    """A runtime that computes a long part of a prompt, up to `prefill_rows`, with whole steps of others in between."""

    prefill_from: int  # fewer rows than this are not worth it

    @property
    def step_seconds(self) -> float:
        """How long the last step beside a run took for its own rows."""
        ...

    def begin_prefill(self, tokens: IntArray, position: int, table: IntArray, slot: int = 0) -> PrefillRun:
        """Begin to compute the next tokens of a sequence; `slot` holds its recurrent state, and is reserved for it
        until the run is done."""
        ...


class Decoder(Protocol):
    """Tokens to text as they come; never half a character."""

    def feed(self, token: int) -> str: ...

    def flush(self) -> str: ...


class Matcher(Protocol):
    """Which tokens may come next: by a grammar, or by the text that the answer begins with."""

    @property
    def given(self) -> bool:
        """Whether the next token only spells given text: then its probability is taken among the allowed tokens."""
        ...

    def mask(self, out: npt.NDArray[Any]) -> None: ...

    def rollback(self, count: int) -> None: ...

    def accept(self, token: int) -> bool: ...

    def is_done(self) -> bool: ...

    def validate(self, tokens: Sequence[int]) -> int: ...

    def forced_tokens(self) -> list[int]: ...
