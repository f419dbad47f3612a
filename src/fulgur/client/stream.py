"""One running response as the caller sees it: an async iterator of typed events that can be steered and cancelled."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fulgur.errors import FulgurError
from fulgur.protocol import events as ev
from fulgur.protocol.errors import ApiError
from fulgur.protocol.items import CLIENT_CALLS, Item, text_of, user_message
from fulgur.protocol.response import Response

if TYPE_CHECKING:
    from fulgur.client.connection import Connection


class ResponseStream:
    """The events of one create, and of the successors that steering opens.

    Iterate it once, or call `final()`. Steering continues in the same iterator: the steered response ends with
    `response.incomplete` (reason `steered`), then the successor's `response.created` follows with a new id.
    After a lost socket the events resume where they stopped; a continued message arrives as a new response whose deltas
    hold only the rest, and `final()` holds the whole.
    """

    def __init__(self, connection: Connection, body: dict[str, Any], lane: str | None) -> None:
        self.body = body
        self.lane = lane
        self.response_id = ""  # known once response.created arrived; the successor's id after a steer
        self.last_sequence = -1
        self.response: Response | None = None  # the latest response object the server sent
        self.done = False
        self._sent: deque[list[Item]] = deque()  # steers without an answer, in the order of their frames
        self._accepted: dict[str, list[Item]] = {}  # by id: steers that are not part of a response yet
        self.late_steers: list[Item] = []  # those that came after the response had ended: the next create sends them
        self.items: list[Item] = []  # finished output items of the current response
        self.partial = ""  # text so far of the current message
        self.carried: list[Item] = []  # output kept from before a lost socket
        self.carried_partial = ""
        self._connection = connection
        self._queue: asyncio.Queue[ev.Event | BaseException | None] = asyncio.Queue()
        self._created = asyncio.Event()

    # --- for callers ---

    def __aiter__(self) -> AsyncIterator[ev.Event]:
        return self

    async def __anext__(self) -> ev.Event:
        if self.done and self._queue.empty():
            raise StopAsyncIteration
        event = await self._queue.get()
        if event is None:
            raise StopAsyncIteration
        if isinstance(event, BaseException):
            raise event
        return event

    async def steer(self, text: str | list[Item], *, boundary: str = "token") -> None:
        """Redirect the running response; returns when the frame is sent.

        `steer.accepted` or `steer.failed` follows. A steer that crosses the end of the response on its way starts the
        next response, in this same stream.
        """
        await self._created.wait()
        if self.done:
            raise FulgurError("The response has ended; send the text as the next input.")
        self._sent.append([user_message(text)] if isinstance(text, str) else text)
        frame: dict[str, Any] = {
            "type": "response.steer",
            "previous_response_id": self.response_id,
            "input": text,
        }
        if boundary != "item" and self._connection.is_fulgur:
            frame["boundary"] = boundary
        await self._connection.send(frame)

    async def cancel(self) -> None:
        """Stop generating; the stream ends with `response.incomplete` and keeps what was written."""
        if not self.done:
            await self._connection.cancel(self)

    async def final(self) -> Response:
        """Read to the end; the last response, whole. Raises ApiError when it failed."""
        async for _ in self:
            pass
        if self.response is None:
            raise FulgurError("The server ended the stream without a response.")
        if self.response.status == "failed":
            error = self.response.error or {}
            raise ApiError(500, str(error.get("code") or "server_error"), str(error.get("message") or "failed"))
        return self.response

    # --- for the connection ---

    def take(self, event: ev.Event) -> None:
        """Update the state from an event, and hand the event to the iterator."""
        if isinstance(event, ev.OutputTextDelta):
            self.partial += event.delta
        elif isinstance(event, ev.OutputItemDone):
            self.items.append(event.item)
            self.partial = ""
        elif isinstance(event, ev.ResponseCreated):
            self.response_id = event.response.id
            self.response = event.response
            self.items, self.partial = [], ""
            self._created.set()
        elif isinstance(event, ev.TERMINAL):
            self._merge(event.response)
            self.response = event.response
        elif isinstance(event, ev.SteerAccepted):
            self._accepted[str(event.steer.id)] = self._sent.popleft() if self._sent else []
        elif isinstance(event, ev.SteerPending | ev.SteerFailed):
            answered = self._accepted.pop(str(event.steer.id), None)
            if answered is None and self._sent:  # refused: it never had an id
                self._sent.popleft()
        self.last_sequence = event.sequence_number
        self._queue.put_nowait(event)

    @property
    def open_steers(self) -> int:
        """How many steers were sent and are neither part of a response nor given back."""
        return len(self._sent) + len(self._accepted)

    def take_steers(self, ids: list[str] | None = None) -> list[Item]:
        """The items of the steers that a successor was opened for; without ids, of all."""
        if ids is not None:
            return [item for steer in ids for item in self._accepted.pop(steer, [])]
        items = [item for steer in (*self._accepted.values(), *self._sent) for item in steer]
        self._accepted.clear()
        self._sent.clear()
        return items

    def keep_late(self) -> bool:
        """Keep a steer that found the response ended, to be sent as the next input; False if that cannot be."""
        ended = self.response.status if self.response is not None else ""
        owed = any(item.get("type") in CLIENT_CALLS for item in self.items)
        if not self._sent or owed or ended in ("failed", "cancelled"):
            return False
        self.late_steers += self._sent.popleft()
        return True

    def ask_again(self, body: dict[str, Any]) -> None:
        """Make `body` the next create of this stream; steers wait until its response is created."""
        self.body = body
        self._created.clear()

    def end(self, error: BaseException | None = None) -> None:
        if not self.done:
            self.done = True
            self._created.set()
            self._queue.put_nowait(error)

    def carry(self) -> None:
        """Keep what was received when the response cannot be replayed and is continued by a new one."""
        self.carried += self.items
        self.carried_partial += self.partial
        self.items, self.partial = [], ""

    def _merge(self, response: Response) -> None:
        """Put what came before a lost socket in front of the continuation's output."""
        if not self.carried and not self.carried_partial:
            return
        output = list(response.output)
        if self.carried_partial:
            head = next((item for item in output if item.get("type") == "message"), None)
            whole = self.carried_partial + (text_of(head) if head else "")
            message: Item = dict(head) if head else {"type": "message", "role": "assistant", "status": "completed"}
            message["content"] = [{"type": "output_text", "text": whole, "annotations": [], "logprobs": []}]
            output = [message if item is head else item for item in output] if head else [message, *output]
        response.output = self.carried + output
        self.carried, self.carried_partial = [], ""
