"""The application: one port, its routes, and what happens to every request on the way in and out."""

from __future__ import annotations

import os
import time
from typing import Any

from aiohttp import web

from fulgur import __version__ as VERSION
from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError, not_found
from fulgur.protocol.ids import new_id
from fulgur.server import fields, models, responses, tracing
from fulgur.server.answers import IGNORED, LEASE, OWNER, RATES, SERVER, error_answer, json_answer, server_of
from fulgur.server.auth import check_bind, is_loopback
from fulgur.server.config import ServerConfig
from fulgur.server.doors import chat, completions, edits, fill, messages, ollama, openapi, status, tokens
from fulgur.server.limits import Runner, connections, listen
from fulgur.server.sinks import STREAM
from fulgur.server.state import Server

# Open to anyone who can reach the port; they show nothing of any user.
OPEN_PATHS = ("", "/docs", "/health", "/healthz", "/metrics", "/openapi.json")


async def healthz(request: web.Request) -> web.Response:
    """Alive even when the store or the live state is away: answers go on. Only the log says why it is away."""
    server = server_of(request)
    found = {"store": server.store.problem(), "live": server.live.problem()}
    problems = [name for name, problem in found.items() if problem]
    status = {"status": "degraded", "problems": problems} if problems else {"status": "ok"}
    return json_answer({**status, "version": VERSION, "models": list(server.models.entries)})


async def metrics(request: web.Request) -> web.Response:
    return web.Response(text=server_of(request).metrics.text(), content_type="text/plain")


@web.middleware
async def guard(request: web.Request, handler: web.Handler) -> web.StreamResponse:  # type: ignore[name-defined]
    """Check who asks and from where, and turn every error into the API's form."""
    server = server_of(request)
    began = time.perf_counter()
    server.last_request = time.monotonic()
    tracing.parent.set(request.headers.get("traceparent", ""))
    try:
        _check_host(server, request)
        server.auth.check_origin(request.headers.get("Origin"), request.headers.get("Host"))
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            return _preflight(request)
        if request.path.rstrip("/") not in OPEN_PATHS:
            request[OWNER] = await server.owner(_credentials(request))
            request[LEASE] = server.budget.lease(request[OWNER])
        answer: web.StreamResponse = await handler(request)
    except ApiError as error:
        answer = error_answer(error, request.path)
    except FulgurError as error:
        server.log_exception(error)
        answer = error_answer(ApiError(500, "server_error", str(error)), request.path)
    except web.HTTPException as error:
        answer = error_answer(_plain(request, error), request.path)
    except Exception as error:
        server.log_exception(error)
        failed = ApiError(500, "server_error", "The server failed on this request; its log says why.")
        answer = error_answer(failed, request.path)
    finally:
        if LEASE in request:
            request[LEASE].release()
    if STREAM in request and answer is not request[STREAM]:
        # The stream's head was already sent. A second answer would be read as part of its body, or leave the client
        # waiting for the body's end.
        answer = request[STREAM]
        if request.transport is not None:
            request.transport.close()
    resource = request.match_info.route.resource
    path = (resource.canonical.rstrip("/") or "/") if resource is not None else "other"
    server.metrics.add("fulgur_http_requests_total", path=path, status=str(answer.status))
    if not answer.prepared:
        answer.headers["openai-processing-ms"] = str(int((time.perf_counter() - began) * 1000))
    return answer


async def add_headers(request: web.Request, answer: web.StreamResponse) -> None:
    name = new_id("req")
    answer.headers["x-request-id"] = name
    if "/messages" in request.path:
        answer.headers["request-id"] = name  # Anthropic's clients show this one with an error
    answer.headers["x-fulgur-version"] = VERSION
    answer.headers.update(request.get(RATES) or {})
    if names := request.get(IGNORED):
        answer.headers[fields.IGNORED] = ", ".join(names)
    origin = request.headers.get("Origin")
    if origin is not None and server_of(request).auth.allows(origin):
        answer.headers["Access-Control-Allow-Origin"] = origin
        answer.headers["Access-Control-Expose-Headers"] = "*"
        answer.headers["Vary"] = "Origin"


def _preflight(request: web.Request) -> web.Response:
    """Answer a browser's CORS preflight; `add_headers` adds the allowed origin."""
    headers = {
        "Access-Control-Allow-Methods": "GET, POST, DELETE",
        "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", "*"),
        "Access-Control-Max-Age": "600",
    }
    return web.Response(status=204, headers=headers)


def _credentials(request: web.Request) -> str | None:
    """The key, as a bearer token or in the header that Anthropic's clients use."""
    key = request.headers.get("x-api-key")
    return request.headers.get("Authorization") or (f"Bearer {key}" if key else None)


def _check_host(server: Server, request: web.Request) -> None:
    """Without keys, refuse every host name but this machine's own, against DNS rebinding."""
    if server.auth.keyed:
        return
    name = (request.headers.get("Host") or "").rpartition(":")
    host = name[0] if name[1] and name[2].isdigit() else (request.headers.get("Host") or "")
    if not is_loopback(host):
        raise ApiError(403, "host_not_allowed", f"The Host header '{host}' does not name this machine.")


def _plain(request: web.Request, error: web.HTTPException) -> ApiError:
    if error.status == 404:
        return not_found(f"There is no endpoint {request.method} {request.path}.")
    if error.status == 405:
        allowed = ", ".join(sorted(getattr(error, "allowed_methods", [])))
        message = f"{request.method} is not allowed at {request.path}; use {allowed}."
        return ApiError(405, "method_not_allowed", message, headers={"Allow": allowed})
    return ApiError(error.status, "http_error", error.reason or "The request cannot be answered.")


def build(server: Server) -> web.Application:
    """The aiohttp application of a server; it opens and closes the server's store and models."""
    app = web.Application(middlewares=[guard], client_max_size=int(server.config.server.max_body_mb * (1 << 20)))
    app[SERVER] = server
    app.on_response_prepare.append(add_headers)
    routes = [
        ("GET", "/responses", responses.upgrade),
        ("POST", "/responses", responses.create),
        ("POST", "/responses/input_tokens", responses.count),
        ("POST", "/responses/compact", responses.compact_input),
        ("GET", "/responses/{id}", responses.read),
        ("DELETE", "/responses/{id}", responses.delete),
        ("POST", "/responses/{id}/cancel", responses.cancel),
        ("GET", "/responses/{id}/input_items", responses.list_input),
        ("GET", "/models", models.listing),
        ("GET", "/models/{id:.+}", models.one),
        ("POST", "/chat/completions", chat.create),
        ("POST", "/completions", completions.create),
        ("POST", "/edits/suggest", edits.suggest),
        ("POST", "/fim/completions", fill.fim),
        ("POST", "/infill", fill.infill),
        ("POST", "/messages", messages.create),
        ("POST", "/messages/count_tokens", messages.count),
        ("POST", "/embeddings", tokens.embeddings),
        ("POST", "/tokenize", tokens.tokenize),
        ("POST", "/detokenize", tokens.detokenize),
    ]
    for root in ("/v1", ""):  # some clients leave the version out
        for method, path, handler in routes:
            _add(app, method, root + path, handler)
    _add(app, "GET", "/api/tags", ollama.tags)
    _add(app, "GET", "/api/ps", ollama.running)
    _add(app, "GET", "/api/version", ollama.version)
    _add(app, "POST", "/api/show", ollama.show)
    _add(app, "POST", "/api/generate", ollama.generate)
    _add(app, "POST", "/api/chat", ollama.chat)
    _add(app, "POST", "/api/embed", tokens.embeddings)
    _add(app, "POST", "/api/embeddings", tokens.embeddings)
    _add(app, "GET", "/props", tokens.props)
    for path in ("/health", "/healthz"):
        _add(app, "GET", path, healthz)
    _add(app, "GET", "/metrics", metrics)
    _add(app, "GET", "/docs", openapi.docs)
    _add(app, "GET", "/openapi.json", openapi.description)
    _add(app, "GET", "/status", status.numbers)
    app.router.add_get("/", status.show)

    async def opened(_: web.Application) -> None:
        await server.open()

    async def closed(_: web.Application) -> None:
        await server.close()

    async def going(_: web.Application) -> None:
        await server.hang_up()

    app.on_startup.append(opened)
    app.on_shutdown.append(going)
    app.on_cleanup.append(closed)
    return app


def _add(app: web.Application, method: str, path: str, handler: Any) -> None:
    """A route, with and without a slash at its end."""
    for form in (path, f"{path}/"):
        app.router.add_route(method, form, handler)
        if method == "GET":
            app.router.add_route("HEAD", form, handler)


class Running:
    """A server that listens; `base_url` is where."""

    def __init__(self, server: Server, runner: web.AppRunner, port: int) -> None:
        self.server = server
        self.port = port
        self._runner = runner

    @property
    def base_url(self) -> str:
        host = self.server.config.server.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/v1"

    async def close(self) -> None:
        await self._runner.cleanup()


async def start(config: ServerConfig, server: Server | None = None) -> Running:
    """Listen. Port 0 takes a free one."""
    server = server or Server(config)
    limit = connections(config.server.max_connections)
    runner = Runner(build(server), limit, handler_cancellation=True, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    try:
        check_bind(config, keyed=server.auth.keyed)
        await listen(runner, config.server.host, config.server.port)
    except FulgurError:
        await runner.cleanup()
        raise
    except OSError as error:
        await runner.cleanup()
        why = os.strerror(error.errno) if error.errno else str(error)  # asyncio's own words repeat the address
        raise FulgurError(
            f"Cannot listen on {config.server.host}:{config.server.port}: {why}",
            hint="Choose another port with --port; 0 means any free one.",
        ) from None
    port = int(runner.addresses[0][1])
    return Running(server, runner, port)
