"""The Responses API over HTTP: create (JSON and SSE), read, replay, cancel, delete, count, compact."""

from __future__ import annotations

import asyncio
import time

import msgspec
from aiohttp import web

from fulgur.backends.base import Conversation
from fulgur.protocol.errors import ApiError, invalid, not_found
from fulgur.protocol.ids import RESPONSE, new_id
from fulgur.protocol.items import Item, item_type
from fulgur.protocol.request import CompactRequest, CreateRequest
from fulgur.server import compact, fields, journal, replay, websocket
from fulgur.server.accounting import usage_object
from fulgur.server.answers import IGNORED, LEASE, admit, json_answer, owner_of, read_request, server_of
from fulgur.server.emitter import NullSink
from fulgur.server.prepare import Prepared, prepare_off_loop
from fulgur.server.run import Run
from fulgur.server.sinks import SseSink
from fulgur.server.state import Server

_CANCEL_S = 10.0  # for a response at another front to end and be stored


async def upgrade(request: web.Request) -> web.StreamResponse:
    """`GET /v1/responses`: the WebSocket; a plain GET gets a 426."""
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise ApiError(
            426,
            "upgrade_required",
            "GET opens a WebSocket here; use POST to create a response.",
            headers={"Upgrade": "websocket", "Connection": "Upgrade"},
        )
    return await websocket.serve(server_of(request), request, owner_of(request))


async def create(request: web.Request) -> web.StreamResponse:
    server, owner = server_of(request), owner_of(request)
    body = await read_request(request, CreateRequest)
    prepared = await prepare_http(server, owner, body)
    request[IGNORED] = prepared.ignored
    await admit(request, prepared.entry, body.service_tier)
    if body.background:
        return await _in_background(server, owner, prepared, request, stream=bool(body.stream))
    if body.stream:
        sink = await SseSink.open(request)
        await _follow_run(Run(server, prepared, sink, owner, None))
        return await sink.close()
    run = Run(server, prepared, NullSink(), owner, None)
    await _follow_run(run)
    if run.refused is not None and run.refused.status < 500 and not run.response.output:
        raise run.refused  # the client's mistake: every SDK raises an HTTP error, but not a failed response
    return json_answer(run.response)


async def prepare_http(server: Server, owner: str, body: CreateRequest) -> Prepared:
    entry = server.models.get(body.model)
    await entry.ready()
    previous: Conversation | None = None
    if body.previous_response_id is not None:
        previous = await server.conversation(owner, body.previous_response_id)
    prepared = await prepare_off_loop(body, entry, previous, body.previous_response_id, websocket=False)
    prepared.turn.owner = server.cache_owner(owner)
    return prepared


async def _follow_run(run: Run) -> None:
    """Run to the end in a separate task; when the client leaves, the run is stopped at once."""
    task = asyncio.create_task(run.run())
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        run.stop("disconnected")
        await asyncio.wait([task])
        raise
    if run.prepared.store and run.after is not None and run.response.status != "failed":
        run.server.remember(run.owner, run.response.id, run.after)


async def _in_background(
    server: Server, owner: str, prepared: Prepared, request: web.Request, *, stream: bool
) -> web.StreamResponse:
    run = Run(server, prepared, NullSink(), owner, None)
    run.response.status = "queued"
    answer = json_answer(run.response)
    task = asyncio.create_task(_follow_run(run))
    lease = request.pop(LEASE)
    server.background.add(task)
    task.add_done_callback(server.background.discard)
    task.add_done_callback(lambda _: lease.release())
    if stream and run.log is not None:
        return await replay.live(request, run.log, -1)
    return answer


async def read(request: web.Request) -> web.StreamResponse:
    """`GET /v1/responses/{id}`, or with `stream=true&starting_after=N` its events after number N."""
    server, owner = server_of(request), owner_of(request)
    response_id = request.match_info["id"]
    running = server.runs.get(response_id)
    if running is not None and running.owner != owner:
        running = None
    if request.query.get("stream") == "true":
        after = _integer(request, "starting_after", -1)
        if running is not None and running.log is not None:
            return await replay.live(request, running.log, after)
        events = await server.store.events(owner, response_id)
        if events is not None:
            return await replay.stored(request, events, after)
        followed = await server.fronts.replay(request, owner, response_id, after) if server.fronts is not None else None
        if followed is None:
            raise _away(server) or _unknown(response_id)
        return followed
    if running is not None and running.prepared.store:
        return json_answer(running.response)
    stored = await server.store.get(owner, response_id)
    if stored is None and server.fronts is not None:
        elsewhere = await server.fronts.find(owner, response_id)
        if elsewhere is not None:
            return json_answer(journal.read(elsewhere.request).response)
    if stored is None:
        raise _away(server) or _unknown(response_id)
    return json_answer(stored.response)


async def delete(request: web.Request) -> web.Response:
    server, owner, response_id = server_of(request), owner_of(request), request.match_info["id"]
    server.forget(owner, response_id)
    if not await server.store.delete(owner, response_id):
        raise _unknown(response_id)
    return json_answer({"id": response_id, "object": "response", "deleted": True})


async def cancel(request: web.Request) -> web.Response:
    """Stop a running response; one that has ended is returned as it is."""
    server, owner, response_id = server_of(request), owner_of(request), request.match_info["id"]
    run = server.runs.get(response_id)
    if run is not None and run.owner == owner:
        response = run.response
        run.stop("cancelled")
        while server.runs.get(response_id) is run:
            await asyncio.sleep(0.001)
        return json_answer(response)
    stored = await server.store.get(owner, response_id)
    if stored is None and server.fronts is not None and await server.fronts.cancel(owner, response_id):
        end = time.monotonic() + _CANCEL_S
        while stored is None and time.monotonic() < end:
            await asyncio.sleep(0.01)
            stored = await server.store.get(owner, response_id)
    if stored is None:
        raise _unknown(response_id)
    return json_answer(stored.response)


async def list_input(request: web.Request) -> web.Response:
    """`GET /v1/responses/{id}/input_items`: newest first unless `order=asc`."""
    server, owner, response_id = server_of(request), owner_of(request), request.match_info["id"]
    chain = await server.store.chain(owner, response_id)
    if not chain:
        raise _unknown(response_id)
    items: list[Item] = []
    for stored in chain[:-1]:
        items += [*stored.input, *stored.response.output]
    items += chain[-1].input
    items = [{"id": f"item_{index}", "type": item_type(item), **item} for index, item in enumerate(items)]
    if request.query.get("order", "desc") == "desc":
        items.reverse()
    elif request.query["order"] != "asc":
        raise invalid("'order' must be 'asc' or 'desc'.", "order", "invalid_value")
    after = request.query.get("after")
    if after is not None:
        place = next((index for index, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise invalid(f"There is no item '{after}'.", "after", "item_not_found")
        items = items[place + 1 :]
    limit = _integer(request, "limit", 20)
    if not 1 <= limit <= 100:
        raise invalid("'limit' must be between 1 and 100.", "limit", "invalid_value")
    page = items[:limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    listing = {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(items) > limit}
    return json_answer(listing)


async def count(request: web.Request) -> web.Response:
    """`POST /v1/responses/input_tokens`."""
    server, owner = server_of(request), owner_of(request)
    body = await read_request(request, CreateRequest)
    prepared = await prepare_http(server, owner, body)
    request[IGNORED] = prepared.ignored
    tokens = await prepared.entry.backend.count(prepared.turn)
    return json_answer({"object": "response.input_tokens", "input_tokens": tokens})


async def compact_input(request: web.Request) -> web.Response:
    """`POST /v1/responses/compact`: a shorter window to continue from."""
    server, owner = server_of(request), owner_of(request)
    wanted = await read_request(request, CompactRequest)
    body = CreateRequest(
        model=wanted.model,
        input=wanted.input,
        instructions=wanted.instructions,
        previous_response_id=wanted.previous_response_id,
        store=False,
    )
    prepared = await prepare_http(server, owner, body)
    _, request[IGNORED] = fields.settle(wanted, prepared.entry)
    items = prepared.turn.conversation.all()
    users = [item for item in items if item_type(item) == "message" and item.get("role") == "user"]
    usage, item = await compact.compact(prepared.entry.backend, prepared.turn)
    return json_answer(
        {
            "id": new_id(RESPONSE),
            "object": "response.compaction",
            "created_at": int(time.time()),
            "model": prepared.response.model,
            "output": [*map(compact.kept_message, users), item],
            "usage": usage_object(usage, prepared.entry.model.price),
        }
    )


def _unknown(response_id: str) -> ApiError:
    return not_found(f"Response with id '{response_id}' not found.", "response_not_found", "response_id")


def _away(server: Server) -> ApiError | None:
    """A 503 while the live state is away: nobody knows what other fronts run, so a 404 could be wrong."""
    if server.fronts is None or not server.live.problem():
        return None
    message = "The responses of other servers cannot be looked up at the moment. Try again."
    return ApiError(503, "live_state_away", message, headers={"retry-after": "1"})


def _integer(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    try:
        return msgspec.convert(text, int, strict=False)
    except msgspec.ValidationError:
        raise invalid(f"'{name}' must be a whole number.", name, "invalid_type") from None
