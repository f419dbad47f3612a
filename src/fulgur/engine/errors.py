"""What can go wrong in the engine, each with a stable `code` that a server passes on."""

from __future__ import annotations

from fulgur.errors import FulgurError


class EngineError(FulgurError):
    """Any error of the engine; `code` is stable and machine readable."""

    code = "engine_error"


class InvalidRequest(EngineError):
    """The request cannot be served: an empty prompt, a token outside the vocabulary, a parameter out of range."""

    code = "invalid_request"


class ContextLengthExceeded(EngineError):
    """The prompt (or a steer) does not fit into the model's context or into the KV cache."""

    code = "context_length_exceeded"


class EngineDied(EngineError):
    """The engine process ended while it was needed; it is restarted automatically."""

    code = "engine_died"


ERRORS: dict[str, type[EngineError]] = {
    cls.code: cls for cls in (EngineError, InvalidRequest, ContextLengthExceeded, EngineDied)
}
