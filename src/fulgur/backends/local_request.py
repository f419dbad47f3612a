"""Translates between the API and the engine: sampling, log-probabilities, errors, edits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fulgur.backends.base import Sampling, Turn
from fulgur.backends.prompts import Prompt
from fulgur.engine import events
from fulgur.engine.errors import ContextLengthExceeded, InvalidRequest
from fulgur.engine.params import SamplingParams
from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError
from fulgur.protocol.items import Item

if TYPE_CHECKING:
    from fulgur.backends.local import LocalBackend
    from fulgur.text.grammar import GrammarSpec


def edit_item(turn: Turn | None) -> Item:
    """The last item, if it is a region to be rewritten, else an empty one."""
    last = turn.conversation.last() if turn is not None else None
    return last if last is not None and last.get("type") == "edit" else {}


def sampling_params(
    sampling: Sampling, backend: LocalBackend, prompt: Prompt, grammar: GrammarSpec | None, stops: tuple[int, ...]
) -> SamplingParams:
    room = max(1, backend.capabilities.context - len(prompt.tokens))
    return SamplingParams(
        max_tokens=min(sampling.max_tokens or prompt.room or room, room),
        temperature=backend.default_temperature if sampling.temperature is None else sampling.temperature,
        top_p=max(sampling.top_p, 1e-6) if sampling.top_p is not None else 1.0,
        top_k=sampling.top_k or 0,
        min_p=sampling.min_p or 0.0,
        seed=sampling.seed,
        presence_penalty=sampling.presence_penalty or 0.0,
        frequency_penalty=sampling.frequency_penalty or 0.0,
        repetition_penalty=1.0 if sampling.repetition_penalty is None else sampling.repetition_penalty,
        logit_bias=tuple(sampling.logit_bias.items()),
        logprobs=sampling.top_logprobs,
        stop=tuple(stop for stop in sampling.stop if stop),
        stop_tokens=stops,
        grammar=grammar,
        begins=sampling.begins,
        weigh_begins=sampling.weigh_begins,
    )


def logprob_object(event: events.Token, token_bytes: Any) -> dict[str, Any]:
    assert event.logprob is not None

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data: bytes = token_bytes(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    top = [entry(token, logprob) for token, logprob in event.logprob.top]
    return {**entry(event.token, event.logprob.logprob), "top_logprobs": top}


# The engine process reports errors as text; the start of the text tells which parameter it is about.
_PARAMS = {"the limit is ": "max_output_tokens", "logit_bias ": "logit_bias"}


def api_error(error: FulgurError, model: str) -> FulgurError:
    """The engine's errors as the API speaks them."""
    if isinstance(error, ContextLengthExceeded):
        return ApiError(400, "context_length_exceeded", f"'{model}': {error.message}.", param="input")
    if isinstance(error, InvalidRequest):
        param = next((param for start, param in _PARAMS.items() if error.message.startswith(start)), "input")
        return ApiError(400, "invalid_request", f"'{model}': {error.message}.", param=param)
    return error
