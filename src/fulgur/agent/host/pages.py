"""The web app over HTTP: its built files and the login. Everything else goes over the WebSocket.

The files are in the package (`assets/web`, built from `apps/web`). They hold no secret and need no login. Every
response forbids what the page does not need: other origins, inline scripts and styles, frames, and text that becomes
HTML.
"""

from __future__ import annotations

import gzip
from importlib import resources
from typing import TypeVar

import msgspec
from aiohttp import web

from fulgur.agent.host.door import Door, other_user

T = TypeVar("T")
_TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "webmanifest": "application/manifest+json",
}


class _TicketWish(msgspec.Struct):
    workspace: str = ""


class _Login(msgspec.Struct):
    ticket: str


def add_pages(app: web.Application, door: Door) -> None:
    """Route the app's files and the login."""
    files = _built_files()

    async def file(request: web.Request) -> web.StreamResponse:
        name = request.match_info.get("name") or "index.html"
        if reason := door.wrong_address(request):
            return _refused(reason)
        if name not in files:
            return web.Response(status=404, text="file not found\n")
        content, zipped = files[name]
        headers = {"Content-Type": f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8"}
        headers |= {"Cache-Control": "no-cache", "Vary": "Accept-Encoding"}  # the next version may differ
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=zipped, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=content, headers=headers)

    async def ticket(request: web.Request) -> web.Response:
        if reason := door.no_program(request):
            return _refused(reason)
        wish = await _body(request, _TicketWish)
        return web.json_response({"ticket": door.ticket(wish.workspace)})

    async def log_in(request: web.Request) -> web.Response:
        if "Origin" not in request.headers:
            return _refused("only a page can log in here")
        if reason := door.wrong_address(request) or other_user(request):
            return _refused(reason)
        found = door.log_in((await _body(request, _Login)).ticket)
        if found is None:
            return _refused("this link was already used or has expired; run `fulgur app` again")
        answer = web.json_response({"workspace": found[1]})
        answer.set_cookie(door.cookie_name, found[0], httponly=True, samesite="Strict", path="/", max_age=30 * 86400)
        return answer

    async def logged_in(request: web.Request) -> web.Response:
        if reason := door.wrong_address(request) or door.no_page(request):
            return _refused(reason)
        return web.json_response({"workspace": door.folder_of(request)})

    async def headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(_headers(door.port))

    app.on_response_prepare.append(headers)
    app.router.add_get("/", file)
    app.router.add_get("/app/{name}", file)
    app.router.add_post("/ticket", ticket)
    app.router.add_post("/login", log_in)
    app.router.add_get("/login", logged_in)


def _headers(port: int) -> dict[str, str]:
    sockets = f"ws://127.0.0.1:{port} ws://localhost:{port}"
    policy = (
        f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self' {sockets}; "
        "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }


def _built_files() -> dict[str, tuple[bytes, bytes]]:
    """Every file, plain and compressed; read once, since there are few."""
    folder = resources.files("fulgur") / "assets" / "web"
    found = {}
    for entry in folder.iterdir():
        if entry.name.rpartition(".")[2] in _TYPES:
            content = entry.read_bytes()
            found[entry.name] = (content, gzip.compress(content, 9, mtime=0))
    return found


async def _body(request: web.Request, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.DecodeError as error:
        raise web.HTTPBadRequest(text=f"{error}\n") from None


def _refused(reason: str) -> web.Response:
    return web.Response(status=403, text=f"{reason}\n")
