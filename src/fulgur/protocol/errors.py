"""Errors as the API speaks them: an HTTP status and `{type, code, message, param}`."""

from __future__ import annotations

from typing import Any

import msgspec

from fulgur.errors import FulgurError


class ErrorBody(msgspec.Struct):
    """The `error` object of an HTTP answer, an `error` frame or a failed response."""

    message: str
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class ApiError(FulgurError):
    """A request that cannot be served; becomes an HTTP error, an error frame or a failed response."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.type = type or ("invalid_request_error" if status < 500 else "server_error")
        self.headers = headers

    def body(self) -> ErrorBody:
        return ErrorBody(self.message, self.type, self.code, self.param, self.headers or msgspec.UNSET)

    def as_dict(self) -> dict[str, Any]:
        return {"message": self.message, "type": self.type, "code": self.code, "param": self.param}


def invalid(message: str, param: str | None = None, code: str = "invalid_request") -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, code, message, param=param)


def not_found(message: str, code: str = "not_found", param: str | None = None) -> ApiError:
    return ApiError(404, code, message, param=param)


def previous_not_found(response_id: str) -> ApiError:
    return ApiError(
        400,
        "previous_response_not_found",
        f"Previous response with id '{response_id}' not found.",
        param="previous_response_id",
    )


def context_exceeded(model: str, tokens: int, limit: int) -> ApiError:
    return ApiError(
        400,
        "context_length_exceeded",
        f"The input is {tokens} tokens long, and the context of '{model}' holds {limit}. "
        "Shorten the input, compact the conversation, or choose a model with a longer context.",
        param="input",
    )
