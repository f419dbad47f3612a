"""JSON-RPC 2.0 messages, as used by the agent host and the Agent Client Protocol."""

from __future__ import annotations

from typing import Any

import msgspec

PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
FAILED = -32000  # the request was understood and could not be done
CANCELLED = -32800

Id = int | str | None
_NULL = msgspec.Raw(b"null")


class ErrorObject(msgspec.Struct, omit_defaults=True):
    """Why a request failed; `data` holds the hint."""

    code: int
    message: str
    data: Any = None


class Message(msgspec.Struct, omit_defaults=True):
    """Any of the three: a request (method and id), a notification (method) or a response (id)."""

    jsonrpc: str = "2.0"
    id: Id | msgspec.UnsetType = msgspec.UNSET
    method: str | None = None
    params: msgspec.Raw = _NULL
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: ErrorObject | None = None


class RpcError(Exception):
    """An error that the other side answered, or one to send to it."""

    def __init__(self, code: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


_decoder = msgspec.json.Decoder(Message)
_encoder = msgspec.json.Encoder()


def decode(data: bytes | str) -> Message:
    """Decode one message; RpcError when it is not one."""
    try:
        message = _decoder.decode(data)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_REQUEST, f"not a JSON-RPC message: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RpcError(PARSE_ERROR, f"not valid JSON: {error}") from None
    if message.method is None and message.id is msgspec.UNSET:
        raise RpcError(INVALID_REQUEST, "neither a request nor a response")
    return message


def request(number: Id, method: str, params: Any) -> bytes:
    return _encoder.encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def notification(method: str, params: Any) -> bytes:
    return _encoder.encode({"jsonrpc": "2.0", "method": method, "params": params})


def response(number: Id, result: Any) -> bytes:
    return _encoder.encode({"jsonrpc": "2.0", "id": number, "result": result})


def failure(number: Id, error: RpcError) -> bytes:
    told: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.hint:
        told["data"] = {"hint": error.hint}
    return _encoder.encode({"jsonrpc": "2.0", "id": number, "error": told})
