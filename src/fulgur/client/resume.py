"""Resumes a stream after a lost socket: replays what was missed if the server kept it, else continues from what
came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp

from fulgur.protocol import events as ev
from fulgur.protocol.items import Item

if TYPE_CHECKING:
    from fulgur.client.connection import Connection
    from fulgur.client.stream import ResponseStream


_ENDS = (ev.OutputTextDone, ev.ContentPartDone, ev.OutputItemDone, ev.FunctionCallArgumentsDone)


async def resume(connection: Connection, stream: ResponseStream) -> None:
    """Resume one interrupted stream; nothing is delivered twice, and open steers are sent at its end."""
    stream.late_steers += stream.take_steers()
    if not stream.response_id:
        await connection.recreate(stream, stream.body)  # nothing had arrived: ask again
        return
    if stream.body.get("store") is not False and await _replay(connection, stream):
        return
    body = continuation(connection, stream)
    stream.carry()
    stream.body = body
    await connection.recreate(stream, body)


async def _replay(connection: Connection, stream: ResponseStream) -> bool:
    """Deliver the stored events that were missed; True when the stored response ended by itself."""
    held: list[ev.Event] = []  # the end of an item, until it is known that the item was not cut
    path = f"/responses/{stream.response_id}?stream=true&starting_after={stream.last_sequence}"
    try:
        async with connection.get(path) as answer:
            if answer.status != 200:
                return False
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                event = ev.decode_event(line[6:])
                cut = isinstance(event, ev.ResponseIncomplete) and was_cut(event)
                if isinstance(event, _ENDS):
                    held.append(event)
                    continue
                if not (cut and held and _is_partial(held[-1])):
                    for end in held:
                        connection.deliver(stream, end)
                held.clear()
                if cut:
                    return False
                connection.deliver(stream, event)
    except (aiohttp.ClientError, OSError):
        return False
    return stream.done


def _is_partial(event: ev.Event) -> bool:
    return isinstance(event, ev.OutputItemDone) and event.item.get("status") == "incomplete"


def was_cut(event: ev.ResponseIncomplete) -> bool:
    """Whether the server stopped because the client was gone, not because the response had ended."""
    return (event.response.incomplete_details or {}).get("reason") == "disconnected"


def continuation(connection: Connection, stream: ResponseStream) -> dict[str, Any]:
    """A create that asks for the rest: the whole input, the items that were done, and the open message last."""
    context = connection.context_of(stream.body)
    body = {key: value for key, value in stream.body.items() if key != "previous_response_id"}
    if context is None:  # only the server knows the history: it may hold it in its store
        given = stream.body.get("input", [])
        context = [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else list(given)
        body["previous_response_id"] = stream.body["previous_response_id"]
    body["input"] = [*context, *stream.items, *_open_message(stream)]
    return body


def _open_message(stream: ResponseStream) -> list[Item]:
    """An assistant message with status `in_progress` at the end of the input is continued, not answered."""
    if not stream.partial:
        return []
    content = [{"type": "output_text", "text": stream.partial, "annotations": []}]
    return [{"type": "message", "role": "assistant", "status": "in_progress", "content": content}]
