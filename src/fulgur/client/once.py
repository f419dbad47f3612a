"""One request and its answer over plain HTTP, with nothing but sockets: what a command needs that must answer at once.

Importing an HTTP library takes longer than a completion. Whoever stays connected uses `Connection`.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from fulgur import __version__
from fulgur.errors import FulgurError


class RequestFailed(FulgurError):
    """The server's own words; `code` is the API's."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def running(home: Path) -> str | None:
    """Where the local server said that it listens; nobody has asked it yet."""
    try:
        record = json.loads((home / "server.json").read_bytes())
        return str(record["base_url"]) if record["version"] == __version__ else None
    except (OSError, ValueError, KeyError):
        return None


def post(base_url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The JSON answer of `http://host:port/v1`; OSError when nobody listens there."""
    host, _, rest = base_url.removeprefix("http://").partition("/")
    name, _, port = host.rpartition(":")
    data = json.dumps(body).encode()
    head = f"POST /{rest}{path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with socket.create_connection((name.strip("[]"), int(port)), timeout=5) as connection:
        connection.settimeout(None)
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = bytearray()
        while piece := connection.recv(1 << 16):
            answer += piece
    header, _, content = bytes(answer).partition(b"\r\n\r\n")
    try:
        status = int(header.split(b" ", 2)[1])
        result: dict[str, Any] = json.loads(content)
    except (ValueError, IndexError):
        raise FulgurError(f"the server at {base_url} ended its answer early", hint="Its log is server.log.") from None
    if status >= 400:
        error = result.get("error") or {}
        raise RequestFailed(status, str(error.get("code")), str(error.get("message")))
    return result
