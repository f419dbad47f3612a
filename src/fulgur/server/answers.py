"""Shared by the handlers: the caller, the request body, and JSON answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from aiohttp import web

from fulgur.protocol.errors import ApiError
from fulgur.server.limits import Lease
from fulgur.server.parse import decode_request, read_body
from fulgur.server.rates import headers_of

if TYPE_CHECKING:
    from fulgur.server.registry import ServedModel
    from fulgur.server.state import Server

T = TypeVar("T")
SERVER: web.AppKey[Server] = web.AppKey("server")
OWNER = web.RequestKey("owner", str)
IGNORED = web.RequestKey("ignored", list[str])  # fields that are ignored; a header names them
RATES = web.RequestKey("rates", dict[str, str])  # the rate limit headers
LEASE = web.RequestKey("lease", Lease)  # the bytes held for this request


def server_of(request: web.Request) -> Server:
    return request.app[SERVER]


def owner_of(request: web.Request) -> str:
    """The name of the key the request came with."""
    return request[OWNER]


async def read_request(request: web.Request, kind: type[T]) -> T:
    """The JSON body as a typed request; its bytes are counted until the request ends."""
    limits = server_of(request).config.server
    data = await read_body(request, request[LEASE], limits.max_body_mb)
    return await decode_request(data, limits.max_nesting, kind)


async def admit(request: web.Request, entry: ServedModel, asked: str | None) -> str:
    """Count the request against its limits or raise a 429; set the rate limit headers. Returns the tier."""
    tier, rates = await server_of(request).admit(entry.pool, owner_of(request), asked)
    request[RATES] = {**headers_of(rates), "x-fulgur-tier": tier}
    return tier


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    data = msgspec.json.encode(value)
    return web.Response(body=data, status=status, content_type="application/json", headers=headers)


def error_answer(error: ApiError, path: str) -> web.Response:
    """The error in the form that clients of that path expect."""
    shape = next((shape for start, shape in ERROR_SHAPES.items() if path.startswith(start)), None)
    body = {"error": error.as_dict()} if shape is None else shape(error)
    return json_answer(body, error.status, error.headers)


ERROR_SHAPES: dict[str, Callable[[ApiError], dict[str, Any]]] = {}  # by path prefix; each door registers its own
