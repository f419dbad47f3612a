"""What handlers share: who asks, the body that was sent, and answers in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from aiohttp import web

from fulgur.protocol.errors import ApiError
from fulgur.server.limits import Lease
from fulgur.server.parse import decode_request, read_body

if TYPE_CHECKING:
    from fulgur.server.state import Server

T = TypeVar("T")
SERVER: web.AppKey[Server] = web.AppKey("server")
OWNER = web.RequestKey("owner", str)
LEASE = web.RequestKey("lease", Lease)  # the bytes that are held for this request


def server_of(request: web.Request) -> Server:
    return request.app[SERVER]


def owner_of(request: web.Request) -> str:
    """The name of the key the request came with."""
    return request[OWNER]


async def read_request(request: web.Request, kind: type[T]) -> T:
    """The JSON body as a typed request; what it takes is counted until the request ends."""
    limits = server_of(request).config.server
    data = await read_body(request, request[LEASE], limits.max_body_mb)
    return await decode_request(data, limits.max_nesting, kind)


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    data = msgspec.json.encode(value)
    return web.Response(body=data, status=status, content_type="application/json", headers=headers)


def error_answer(error: ApiError) -> web.Response:
    return json_answer({"error": error.as_dict()}, error.status, error.headers)
