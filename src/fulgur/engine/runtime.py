"""What the engine needs from the kernels, the tokenizer and the grammar: their interfaces, no more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


class Runtime(Protocol):
    """One loaded model. A row's result is bit-identical whatever else is in the step."""

    vocab_size: int
    max_context: int
    block_tokens: int
    kv_blocks: int
    max_rows: int
    prefill_rows: int  # rows of a prompt in a step when nothing decodes
    isa: str  # what runs the kernels, for people
    threads: int

    @property
    def streaming(self) -> StreamingRuntime | None:
        """The same runtime where it can decode without the host, else None."""
        ...

    @property
    def prefilling(self) -> PrefillingRuntime | None:
        """The same runtime where it can compute a prompt beside steps, else None."""
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


class TokenStream(Protocol):
    """A sequence that decodes by itself on the device. Until it has ended nothing else is asked of the runtime."""

    ended: bool

    def read(self) -> list[int]:
        """The tokens since the last call, waiting for at least one; none only when the run has ended."""
        ...

    def stop(self) -> list[int]:
        """End it at its next step; when the device is idle, the tokens that were not read."""
        ...


class StreamingRuntime(Runtime, Protocol):
    """A runtime whose decode loop needs no host; its tokens are those of `step`."""

    def stream(
        self,
        token: int,
        position: int,
        table: IntArray,
        stop: Collection[int],
        limit: int,
        draw: tuple[float, int] | None = None,
    ) -> TokenStream:
        """Go on from `token` at `position` for at most `limit` tokens, for which `table` has blocks. It ends after a
        stop token, or may run past it: the reader looks. `draw`: 1 / temperature and seed, as in `gumbel.py`."""
        ...


class PrefillRun(Protocol):
    """A prompt under way, in parts that are queued on the device."""

    done: bool
    failed: bool  # for lack of memory
    share: float | None  # set before a step: parts that take this share of the time are queued behind its rows

    def finish(self) -> None:
        """Queue all that is left."""
        ...

    def close(self) -> None:
        """Leave out what is not queued yet."""
        ...


class PrefillingRuntime(Runtime, Protocol):
    """A runtime that computes a long run of a prompt, up to `prefill_rows`, with whole steps of others in between."""

    prefill_from: int  # from so many on it pays
    step_seconds: float  # of the last step beside a run, its own rows alone

    def begin_prefill(self, tokens: IntArray, position: int, table: IntArray) -> PrefillRun: ...


class Decoder(Protocol):
    """Tokens to text as they come; never half a character."""

    def feed(self, token: int) -> str: ...

    def flush(self) -> str: ...


class Matcher(Protocol):
    """Which tokens a grammar allows next."""

    def mask(self, out: npt.NDArray[Any]) -> None: ...

    def accept(self, token: int) -> bool: ...

    def is_done(self) -> bool: ...

    def validate(self, tokens: Sequence[int]) -> int: ...

    def forced_tokens(self) -> list[int]: ...
