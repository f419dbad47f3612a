"""How a response ends: its status, what is stored of it, and what the conversation continues from."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fulgur.protocol.errors import ApiError
from fulgur.protocol.items import Item, item_type
from fulgur.protocol.response import Response
from fulgur.server.emitter import Emitter
from fulgur.server.output import Output
from fulgur.server.store.base import Answer, Stored
from fulgur.text.parts import Finish

if TYPE_CHECKING:
    from fulgur.server.state import Server

# Why a run was told to stop, and the status its response ends with.
STOPPED = {
    "cancelled": "cancelled",
    "interrupted": "incomplete",
    "disconnected": "incomplete",
    "overtaken": "incomplete",
}


def settle(response: Response, output: Output, emitter: Emitter, finish: Finish, stopped: str) -> ApiError | None:
    """Close the open item and set the status; `stopped` is why the run was told to stop, if it was.

    Returns an error when the backend gave up by itself.
    """
    if stopped:
        if stopped == "interrupted":
            dropped = output.discard()
            if dropped is not None:
                item_id, index = dropped
                emitter.emit(
                    "response.output_item.interrupted", response_id=response.id, item_id=item_id, output_index=index
                )
        else:
            output.close("incomplete")
        response.status = STOPPED[stopped]
        response.incomplete_details = {"reason": stopped}
    elif finish.reason in ("length", "content_filter"):
        output.close("incomplete")
        response.status = "incomplete"
        reason = "max_output_tokens" if finish.reason == "length" else "content_filter"
        response.incomplete_details = {"reason": reason}
    elif finish.reason == "cancelled":
        return ApiError(500, "server_error", "The backend ended the answer before it was complete.")
    else:
        output.close()
        response.status = "completed"
    return None


async def commit(server: Server, answer: Answer, stored: Stored | None, events: list[bytes]) -> bool:
    """Commit a response's end with its usage; False when another attempt owns the response.

    A response that could not be written is still complete; its `store: false` says that it will not last.
    """
    began = time.perf_counter()
    try:
        ended = await server.store.end(answer, stored, events)
        if stored is not None:
            server.metrics.observe("fulgur_commit_seconds", time.perf_counter() - began)
        return ended
    except Exception as error:
        server.log_exception(error)
        server.metrics.add("fulgur_store_failures_total")
        if stored is not None:
            stored.response.store = False
        return True


def kept(output: list[Item]) -> list[Item]:
    """The output items that the conversation continues from: partial messages included, partial tool calls not."""
    return [item for item in output if item_type(item) == "message" or item.get("status", "completed") == "completed"]
