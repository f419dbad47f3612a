"""One side of a JSON-RPC connection, whatever carries its messages: requests go both ways."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from fulgur.errors import FulgurError
from fulgur.protocol import rpc
from fulgur.protocol.rpc import RpcError

T = TypeVar("T")
MOST_AT_ONCE = 256  # requests of the other side in progress

Send = Callable[[bytes], Awaitable[None]]
Handle = Callable[[str, msgspec.Raw], Awaitable[Any]]
"""Answers a request. Notifications are handled in the order they come, before anything behind them is read, so their
handler must not ask the same peer."""

OnResult = Callable[[msgspec.Raw], None]
Methods = dict[str, tuple[type[Any], Callable[[Any], Awaitable[Any]]]]
"""By name: what the parameters must be, and what is done with them."""


async def dispatch(methods: Methods, method: str, params: msgspec.Raw) -> Any:
    """Answer a request from a table of methods."""
    known = methods.get(method)
    if known is None:
        raise RpcError(rpc.NO_METHOD, f"unknown method {method}")
    kind, work = known
    try:
        given = msgspec.json.decode(b"{}" if bytes(params) == b"null" else params, type=kind)
    except msgspec.DecodeError as error:
        raise RpcError(rpc.INVALID_PARAMS, f"{method}: {error}") from None
    return await work(given)


@dataclass(frozen=True)
class Then:
    """An answer, and what to do right after it was sent."""

    result: Any
    work: Callable[[], Awaitable[None]]


CANCEL = "$/cancel_request"


class ConnectionLost(FulgurError):
    """The other side is gone; it is unknown whether the request was done."""


class Peer:
    """`run` reads until the messages end. Requests start in the order they came, each in a separate task."""

    def __init__(self, send: Send, handle: Handle) -> None:
        self._send = send
        self._handle = handle
        self._count = 0
        self._waiting: dict[rpc.Id, tuple[asyncio.Future[msgspec.Raw], OnResult | None]] = {}
        self._working: dict[rpc.Id, asyncio.Task[None]] = {}
        self._telling: set[asyncio.Future[None]] = set()
        self._unstarted = False
        self.closed = False

    async def run(self, messages: AsyncIterator[bytes | str]) -> None:
        """Read until the other side ends; then fail the requests that wait for an answer, and cancel those in
        progress."""
        try:
            async for data in messages:
                await self._take(data)
        finally:
            self.closed = True
            for future, _ in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionLost("the connection was lost"))
            tasks = [*self._working.values(), *self._telling]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def request(self, method: str, params: Any, type: type[T], on_result: OnResult | None = None) -> T:
        """Ask the other side; RpcError is its refusal. `on_result` sees the answer before any later message."""
        if self.closed:
            raise ConnectionLost("the connection was lost")
        self._count += 1
        number = self._count
        future: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (future, on_result)
        try:
            await self._send(rpc.request(number, method, params))
            result: T = msgspec.json.decode(await future, type=type)
            return result
        except (ConnectionError, OSError) as error:
            raise ConnectionLost(f"the connection was lost: {error}") from None
        except asyncio.CancelledError:
            if not self.closed:  # in a task: a cancelled caller must not wait for a slow reader
                telling = asyncio.ensure_future(self._tell(rpc.notification(CANCEL, {"requestId": number})))
                self._telling.add(telling)
                telling.add_done_callback(self._telling.discard)
            raise
        finally:
            del self._waiting[number]

    async def notify(self, method: str, params: Any) -> None:
        """Notify the other side; there is no answer."""
        await self._send(rpc.notification(method, params))

    def cancel(self, number: rpc.Id) -> bool:
        """End the work on a request of the other side; it is answered as cancelled."""
        task = self._working.get(number)
        return task is not None and task.cancel()

    async def _take(self, data: bytes | str) -> None:
        try:
            message = rpc.decode(data)
        except RpcError as error:
            await self._tell(rpc.failure(None, error))
            return
        if message.method is None:
            self._settle(message)
            return
        if message.method == CANCEL:
            with contextlib.suppress(msgspec.DecodeError):
                self.cancel(msgspec.json.decode(message.params, type=dict[str, rpc.Id]).get("requestId"))
        elif message.id is msgspec.UNSET:
            if self._unstarted:  # earlier requests begin before it: a cancel must follow its prompt
                self._unstarted = False
                await asyncio.sleep(0)
            await self._quietly(message.method, message.params)
        elif len(self._working) >= MOST_AT_ONCE or message.id in self._working:
            await self._tell(
                rpc.failure(message.id, RpcError(rpc.INVALID_REQUEST, "too many requests, or an id that is in use"))
            )
        else:
            number = message.id
            task = asyncio.create_task(self._answer(number, message.method, message.params))
            self._working[number] = task
            self._unstarted = True
            task.add_done_callback(lambda _: self._working.pop(number, None))

    def _settle(self, message: rpc.Message) -> None:
        if isinstance(message.id, msgspec.UnsetType) or message.id not in self._waiting:
            return
        future, on_result = self._waiting[message.id]
        if future.done():
            return
        if message.error is not None:
            told = message.error
            hint = str(told.data.get("hint", "")) if isinstance(told.data, dict) else ""
            future.set_exception(RpcError(told.code, told.message, hint))
        else:
            result = msgspec.Raw(b"null") if isinstance(message.result, msgspec.UnsetType) else message.result
            if on_result is not None:
                on_result(result)
            future.set_result(result)

    async def _quietly(self, method: str, params: msgspec.Raw) -> None:
        try:
            await self._handle(method, params)
        except (RpcError, FulgurError, msgspec.ValidationError):
            return  # a notification is not answered, not even with an error

    async def _answer(self, number: rpc.Id, method: str, params: msgspec.Raw) -> None:
        then: Callable[[], Awaitable[None]] | None = None
        try:
            result = await self._handle(method, params)
            if isinstance(result, Then):
                result, then = result.result, result.work
            answer = rpc.response(number, result)
        except RpcError as error:
            answer = rpc.failure(number, error)
        except FulgurError as error:
            answer = rpc.failure(number, RpcError(rpc.FAILED, error.message, error.hint or ""))
        except msgspec.ValidationError as error:
            answer = rpc.failure(number, RpcError(rpc.INVALID_PARAMS, f"{method}: {error}"))
        except asyncio.CancelledError:
            answer = rpc.failure(number, RpcError(rpc.CANCELLED, "cancelled"))
            if self.closed:
                raise
        except Exception as error:  # a bug of ours must not leave the other side waiting
            answer = rpc.failure(number, RpcError(rpc.INTERNAL, f"{type(error).__name__}: {error}"))
        await self._tell(answer)
        if then is not None:
            with contextlib.suppress(ConnectionError, OSError):
                await then()

    async def _tell(self, data: bytes) -> None:
        try:
            await self._send(data)
        except (ConnectionError, OSError):
            self.closed = True
