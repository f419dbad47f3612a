"""One request and its answer over plain HTTP, with bare sockets, for commands that must answer at once.

Importing an HTTP library takes longer than a completion. For a lasting connection use `Connection`.
"""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
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


@dataclass(frozen=True)
class LocalServer:
    """How the local server is found and started. `home` holds `server.json`, which says where it listens."""

    home: Path
    config: Path | None = None  # passed to `fulgur serve --file`
    port: int | None = None  # None: what the config says; a free one when it is taken
    model: Path | None = None  # passed to `fulgur serve --model`: it serves this one alone
    start_seconds: float = 30.0


def running(home: Path) -> str | None:
    """The base URL that the local server left; it has not been contacted yet."""
    try:
        record = json.loads((home / "server.json").read_bytes())
        return str(record["base_url"]) if record["version"] == __version__ else None
    except (OSError, ValueError, KeyError):
        return None


def answers(base_url: str) -> bool:
    """Whether a Fulgur server answers at `/healthz`."""
    with contextlib.suppress(OSError, ValueError):
        header, _ = _exchange(base_url, "GET", "/healthz", b"", seconds=2)
        return header.split(b" ", 2)[1:2] == [b"200"] and b"x-fulgur-version:" in header.lower()
    return False


def resting(base_url: str) -> int | None:
    """The process id of a server that is answering nobody just now; None when it is, or does not say."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads(_exchange(base_url, "GET", "/status", b"", seconds=2)[1])
        return int(told["pid"]) if told["running"] == told["queued"] == 0 else None
    return None


def post(base_url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The JSON answer of `http://host:port/v1`; OSError when nobody listens there."""
    header, content = _exchange(base_url, "POST", f"/v1{path}", json.dumps(body).encode())
    try:
        status = int(header.split(b" ", 2)[1])
        result: dict[str, Any] = json.loads(content)
    except (ValueError, IndexError):
        raise FulgurError(f"the server at {base_url} ended its answer early", hint="Its log is server.log.") from None
    if status >= 400:
        error = result.get("error") or {}
        raise RequestFailed(status, str(error.get("code")), str(error.get("message")))
    return result


def _exchange(base_url: str, method: str, path: str, data: bytes, seconds: float | None = None) -> tuple[bytes, bytes]:
    """The header and content of one answer; `seconds` is the timeout of each read."""
    host = base_url.removeprefix("http://").removesuffix("/v1")
    name, _, port = host.rpartition(":")
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with socket.create_connection((name.strip("[]"), int(port)), timeout=seconds or 5) as connection:
        connection.settimeout(seconds)
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = bytearray()
        while piece := connection.recv(1 << 16):
            answer += piece
    header, _, content = bytes(answer).partition(b"\r\n\r\n")
    return header, content
