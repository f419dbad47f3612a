"""Where a replica listens: `host:port`, or `unix:/path` on one machine."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fulgur.errors import UsageError

P = TypeVar("P", bound=asyncio.Protocol)
TLS_S = 5.0  # for a handshake


@dataclass(frozen=True)
class Address:
    """`port` 0 means a free port; a path means a Unix socket."""

    host: str
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        if text.startswith("unix:"):
            return cls("", path=text.removeprefix("unix:"))
        host, colon, port = text.rpartition(":")
        if not (colon and host and port.isdecimal() and int(port) < 65_536):
            raise UsageError(f"'{text}' is not a valid address", hint="Write host:port, or unix:/path on one machine.")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def from_outside(self) -> Address:
        """The address at which other machines reach this one; for a wildcard, that of this machine's name."""
        if self.host not in ("0.0.0.0", "::"):
            return self
        try:
            return Address(socket.gethostbyname(socket.gethostname()), self.port)
        except OSError:
            raise UsageError(
                "The name of this machine does not resolve to an address.",
                hint="Listen on one address instead of all (--listen).",
            ) from None

    async def connect(self, protocol: Callable[[], P], tls: ssl.SSLContext | None = None) -> P:
        """`tls` is for the network; a Unix socket needs none."""
        loop = asyncio.get_running_loop()
        if self.path:
            return (await loop.create_unix_connection(protocol, self.path))[1]
        timeout = None if tls is None else TLS_S
        made = loop.create_connection(protocol, self.host, self.port, ssl=tls, ssl_handshake_timeout=timeout)
        return (await made)[1]

    async def serve(
        self, protocol: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.Server, Address]:
        loop = asyncio.get_running_loop()
        if self.path:
            Path(self.path).unlink(missing_ok=True)
            server = await loop.create_unix_server(protocol, self.path)
            Path(self.path).chmod(0o600)
            return server, self
        timeout = None if tls is None else TLS_S
        server = await loop.create_server(protocol, self.host, self.port, ssl=tls, ssl_handshake_timeout=timeout)
        return server, Address(self.host, server.sockets[0].getsockname()[1])
