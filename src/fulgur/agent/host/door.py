"""Who may connect: programs with the token of `host.json`, browsers with a ticket that they trade for a cookie.

`fulgur app` asks for a ticket and puts it into the fragment of the URL, which browsers send to no server. The page
removes it from the URL, posts it to `/login` and gets a cookie that no script can read. A ticket works once and expires
after ten minutes.

Browsers send a cookie to every port of this machine, and other users of this machine can reach this port. So a page
must come from exactly this origin, and the browser must run as the same user where the system can tell.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import time
from pathlib import Path

from aiohttp import web

TICKET_SECONDS = 600.0
_MOST_TICKETS = 32
_MOST_COOKIES = 256


class Door:
    """The access checks of one listener; `port` is set once it listens."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self.port = 0
        self._tickets: dict[str, tuple[float, str]] = {}  # expiry time, and the folder it was asked for
        self._cookies: dict[str, str] = {}  # the folder of each

    @property
    def cookie_name(self) -> str:
        return f"fulgur_{self.port}"  # cookies are shared by all ports of a machine

    # ---- checks: each returns the reason for a refusal, or "" ----------------------------------------------------

    def wrong_address(self, request: web.BaseRequest) -> str:
        """Refuse unless `Host` names exactly this port (DNS rebinding) and a page comes from the same origin."""
        names = {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}
        host = request.headers.get("Host")
        if host not in names:
            return "the Host header does not name this host"
        origin = request.headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            return "pages of other origins may not connect"
        return ""

    def refusal(self, request: web.BaseRequest) -> str:
        """Why a request may not connect: it needs the token, or a page's cookie."""
        if self.cookie_name in request.cookies and not _token(request):
            return self.wrong_address(request) or self.no_page(request)
        return self.no_program(request)

    def no_program(self, request: web.BaseRequest) -> str:
        """Why a request does not come from a program with the token."""
        wrong = "" if _same(_token(request), self.token) else "the token is missing or wrong"
        return self.wrong_address(request) or wrong

    def no_page(self, request: web.BaseRequest) -> str:
        """Why a request does not come from a logged-in page. A WebSocket must send its `Origin`."""
        if request.headers.get("Upgrade") is not None and request.headers.get("Origin") is None:
            return "cookies are accepted from pages only"
        if self.folder_of(request) is None:
            return "the login is missing or has expired"
        return other_user(request)

    # ---- logging in --------------------------------------------------------------------------------------------

    def ticket(self, workspace: str) -> str:
        """Make a ticket for a page that will offer this folder first."""
        now = time.monotonic()
        self._tickets = {name: kept for name, kept in self._tickets.items() if kept[0] > now}
        while len(self._tickets) >= _MOST_TICKETS:
            del self._tickets[next(iter(self._tickets))]
        ticket = secrets.token_urlsafe(32)
        self._tickets[ticket] = (now + TICKET_SECONDS, workspace)
        return ticket

    def log_in(self, ticket: str) -> tuple[str, str] | None:
        """Trade a valid ticket for a cookie value and the ticket's folder."""
        known = next((name for name in self._tickets if _same(name, ticket)), None)
        until, workspace = self._tickets.pop(known) if known is not None else (0.0, "")
        if time.monotonic() > until:
            return None
        while len(self._cookies) >= _MOST_COOKIES:
            del self._cookies[next(iter(self._cookies))]
        cookie = secrets.token_urlsafe(32)
        self._cookies[cookie] = workspace
        return cookie, workspace

    def folder_of(self, request: web.BaseRequest) -> str | None:
        """The folder of the page with this cookie; None if the cookie is not ours."""
        given = request.cookies.get(self.cookie_name, "")
        return next((folder for cookie, folder in self._cookies.items() if _same(cookie, given)), None)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _token(request: web.BaseRequest) -> str:
    scheme, _, given = (request.headers.get("Authorization") or "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    offered = (part.strip() for part in (request.headers.get("Sec-WebSocket-Protocol") or "").split(","))
    return next((part.removeprefix("fulgur.token.") for part in offered if part.startswith("fulgur.token.")), "")


def other_user(request: web.BaseRequest) -> str:
    """Refuse a connection known to be another user's; only Linux reports whose it is."""
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    owner = _owner(*peer[:2]) if peer else None
    return "" if owner in (None, 0, os.getuid()) else "this program belongs to another user of this machine"


def _owner(address: str, port: int) -> int | None:
    """The user of a local TCP socket; None if unknown (a tunnel of another kind, another system)."""
    word = f"{int.from_bytes(socket.inet_aton(address), 'little'):08X}"
    for table, local in (("tcp", word), ("tcp6", f"0000000000000000FFFF0000{word}")):
        try:
            rows = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if len(fields) > 7 and fields[1] == f"{local}:{port:04X}":
                return int(fields[7])
    return None
