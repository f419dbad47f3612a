"""The sampling settings of every door, checked in one place."""

from __future__ import annotations

from fulgur.backends.base import Sampling
from fulgur.protocol.errors import invalid
from fulgur.protocol.request import SamplingFields
from fulgur.server.parse import at_least, in_range

RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (-1, 1_000_000),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 100),
    "seed": (-(2**63), 2**64 - 1),
}
MAX_BIASED = 1024  # tokens
MAX_STOPS = 64


def to_sampling(
    body: SamplingFields, max_tokens: int | None, limit: str, *, top_logprobs: int | None = None
) -> Sampling:
    """The settings as backends read them; `limit` is the door's name for `max_tokens`."""
    for name, (low, high) in RANGES.items():
        in_range(getattr(body, name), low, high, name)
    at_least(max_tokens, 1, limit)
    in_range(top_logprobs, 0, 20, "top_logprobs")
    stop = [] if body.stop is None else [body.stop] if isinstance(body.stop, str) else body.stop
    if len(stop) > MAX_STOPS:
        raise invalid(f"'stop' may hold at most {MAX_STOPS} strings.", "stop", "invalid_value")
    return Sampling(
        max_tokens=max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=None if body.top_k is None else max(body.top_k, 0),
        min_p=body.min_p,
        top_logprobs=top_logprobs,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=_bias(body.logit_bias or {}),
        seed=body.seed,
        stop=stop,
    )


def _bias(bias: dict[str, float]) -> dict[int, float]:
    if len(bias) > MAX_BIASED:
        raise invalid(f"'logit_bias' may hold at most {MAX_BIASED} tokens.", "logit_bias", "invalid_value")
    for token, value in bias.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise invalid(f"Invalid 'logit_bias': {token[:32]!r} is not a token.", "logit_bias", "invalid_value")
        in_range(value, -100, 100, f"logit_bias.{token}")
    return {int(token): value for token, value in bias.items()}
