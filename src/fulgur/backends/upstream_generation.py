"""One answer of an upstream API, read as server-sent events; a steer stops it and asks again, keeping the partial."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
import msgspec

from fulgur.backends.base import Completion, Generation, Turn
from fulgur.client.discover import in_words
from fulgur.protocol.errors import ApiError
from fulgur.protocol.items import Item
from fulgur.text.parts import Begin, Finish, Part, Steered, TextDelta, Usage

if TYPE_CHECKING:
    from fulgur.backends.upstream import UpstreamBackend


class Reader(Protocol):
    """Turns the upstream's events into parts."""

    usage: Usage
    reason: str | None

    def read(self, event: dict[str, Any]) -> list[Part]: ...
    def end(self) -> list[Part]: ...


Body = Callable[["UpstreamBackend", Any], dict[str, Any]]


class UpstreamGeneration(Generation):
    def __init__(
        self,
        backend: UpstreamBackend,
        asked: Turn | Completion,
        path: str,
        body: Body,
        reader: Callable[[UpstreamBackend, Any], Reader],
    ) -> None:
        self._backend = backend
        self._asked = asked
        self._path = path
        self._body = body
        self._new_reader = reader
        self._answer: aiohttp.ClientResponse | None = None
        self._steers: list[Item] = []
        self._cancelled = False
        self._ended = False
        self._said: list[str] = []

    def cancel(self) -> None:
        self._cancelled = True
        self._stop_reading()

    def steer(self, items: list[Item]) -> bool:
        if self._ended or self._cancelled or not isinstance(self._asked, Turn):
            return False
        self._steers += items
        self._stop_reading()
        return True

    async def __aiter__(self) -> AsyncIterator[Part]:
        try:
            yield Begin()
            while True:
                reader = self._new_reader(self._backend, self._asked)
                async for part in self._read(reader):
                    if type(part) is TextDelta:
                        self._said.append(part.text)
                    yield part
                if self._cancelled:
                    reason = "cancelled"
                elif self._steers:
                    yield self._turn_round(reader.usage)
                    continue
                elif reader.reason is None:
                    raise ApiError(
                        502, "upstream_error", f"The backend of '{self._backend.name}' ended the answer early."
                    )
                else:
                    reason = reader.reason
                self._ended = True
                yield Finish(reason, reader.usage)
                return
        finally:
            self._ended = True
            self._stop_reading()

    async def _read(self, reader: Reader) -> AsyncIterator[Part]:
        """Parts until the end, a cancel or a steer."""
        self._answer = await self._backend.post(self._path, self._body(self._backend, self._asked))
        if self._interrupted():
            self._stop_reading()
            return
        try:
            async for line in self._answer.content:
                if self._interrupted():
                    return
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    break
                for part in reader.read(_object(data)):
                    yield part
                    if self._interrupted():
                        return
            for part in reader.end():
                yield part
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            if not self._interrupted():
                backend = self._backend
                raise ApiError(
                    502,
                    "upstream_error",
                    f"The backend of '{backend.name}' at {backend.url} ended the answer early: {in_words(error)}",
                ) from None

    def _turn_round(self, usage: Usage) -> Steered:
        """Keep what was said and append the steer, for the next request to the upstream."""
        assert isinstance(self._asked, Turn)
        said = "".join(self._said)
        partial: list[Item] = [{"type": "message", "role": "assistant", "content": said}] if said else []
        steers, self._steers, self._said = self._steers, [], []
        self._asked = replace(self._asked, conversation=self._asked.conversation.extend([*partial, *steers]))
        return Steered(steers, usage, Begin())

    def _interrupted(self) -> bool:
        return self._cancelled or bool(self._steers)

    def _stop_reading(self) -> None:
        if self._answer is not None:
            self._answer.close()


def _object(data: bytes) -> dict[str, Any]:
    try:
        event = msgspec.json.decode(data)
    except msgspec.DecodeError:
        raise ApiError(502, "upstream_error", "The backend sent invalid JSON.") from None
    return event if isinstance(event, dict) else {}
