"""What the engine reports.

Order, for one request: `Started`, then for each sequence (`index`) its `Token`s and one `Finished`. A preempted
sequence reports nothing: it continues later where it stopped. `SteerOutcome` comes between the last token before the
steer and the first one after it. A kept sequence may go on after its `Finished`, but only after a `SteerOutcome`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error", "prefilled"]


@dataclass(slots=True)
class TokenLogprob:
    """The log-probability of the token, and the most likely alternatives as (token, logprob), best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Counts:
    """Counts and seconds of one sequence; `accepted_tokens` of `draft_tokens` were right guesses."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclass(slots=True)
class Started:
    """The prompt was admitted; `cached_tokens` of it are not computed again."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class Token:
    """One generated token. `text` may be empty (half a character, or the possible start of a stop string) and may
    hold text of earlier tokens; all texts joined are the answer. The token that ended the sequence is reported too.
    """

    request_id: str
    index: int
    token: int
    text: str
    logprob: TokenLogprob | None = None


@dataclass(slots=True)
class SteerOutcome:
    """`tokens` were appended after `completion_tokens` generated ones; or, with a `message`, why they were not.

    `text` is what was still held back then: it belongs before the steer.
    """

    request_id: str
    index: int
    tokens: int
    completion_tokens: int
    message: str | None = None
    text: str = ""


@dataclass(slots=True)
class Finished:
    """The sequence ended. `text` is what was still held back when it was cancelled or failed, empty otherwise."""

    request_id: str
    index: int
    reason: FinishReason
    usage: Counts
    message: str | None = None
    text: str = ""


Event: TypeAlias = Started | Token | SteerOutcome | Finished
