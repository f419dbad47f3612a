"""Several fronts as one server: a response can be read, steered and cancelled at any of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Literal

import msgspec
from aiohttp import web

from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError
from fulgur.protocol.ids import new_id
from fulgur.protocol.request import SteerRequest
from fulgur.server import replay, takeover
from fulgur.server.live.base import LiveAway, Running
from fulgur.server.sinks import SseSink
from fulgur.server.store.base import StoreAway

if TYPE_CHECKING:
    from fulgur.server.run import Run
    from fulgur.server.state import Server

ANSWER_S = 0.5  # how long to wait for a letter's answer, for each of two tries
LOOK_S = 0.5  # between two looks at whether a response's front is alive
FOLLOW_S = 2.0  # between two letters saying that a client follows a response here
PATIENCE_S = 30.0  # how long to wait for a live state or a store that is away


class Letter(msgspec.Struct):
    """A message between fronts. An `answer` has the id of its letter; an empty `code` means that it was done."""

    kind: Literal["steer", "cancel", "follow", "answer", "look"]
    id: str
    sender: str
    owner: str = ""
    response_id: str = ""
    steer: SteerRequest | None = None
    code: str = ""
    message: str = ""
    steer_id: str = ""
    pool: str = ""  # for `look`: whose queue has changed


_letter = msgspec.msgpack.Decoder(Letter)


class Fronts:
    """The mail of one front."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._live = server.live
        self._asked: dict[str, asyncio.Future[Letter]] = {}
        self._taking: dict[str, asyncio.Task[Run | None]] = {}  # responses of dead fronts, before they run here
        self._reading: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    # --- asking others ---

    async def find(self, owner: str, response_id: str) -> Running | None:
        """A response of this owner that another front runs."""
        try:
            found = await self._live.find(response_id)
        except LiveAway:
            return None
        return found if found is not None and found.owner == owner else None

    async def steer(self, owner: str, request: SteerRequest) -> str:
        """Hand a steer to the front that runs the response; return the steer's id or raise that front's ApiError."""
        response_id = request.previous_response_id
        letter = Letter("steer", new_id("letter"), self._live.front, owner, response_id, request)
        answer = await self._ask(letter)
        if answer is None:
            raise ApiError(400, "response_not_active", "The server that runs the response does not answer.")
        if answer.code:
            raise ApiError(400, answer.code, answer.message)
        return answer.steer_id

    async def cancel(self, owner: str, response_id: str) -> bool:
        """Cancel a response at the front that runs it; True when that front did."""
        answer = await self._ask(Letter("cancel", new_id("letter"), self._live.front, owner, response_id))
        return answer is not None and not answer.code

    async def look(self, pool: str, fronts: set[str]) -> None:
        """Tell these fronts that the queue of a pool has changed."""
        letter = msgspec.msgpack.encode(Letter("look", "", self._live.front, pool=pool))
        for front in fronts:
            await self._live.send(front, letter)

    async def _ask(self, letter: Letter) -> Letter | None:
        """Send a letter, twice if need be, and return its answer. A front that gets it twice acts on it once."""
        with contextlib.suppress(LiveAway):
            for _ in range(2):
                found = await self.find(letter.owner, letter.response_id)
                if found is None:
                    raise ApiError(404, "response_not_found", f"There is no running response '{letter.response_id}'.")
                answer = await self._ask_front(found.front, letter)
                if answer is not None:
                    return answer
        return None

    async def _ask_front(self, front: str, letter: Letter) -> Letter | None:
        answered = self._asked[letter.id] = asyncio.get_running_loop().create_future()
        try:
            await self._live.send(front, msgspec.msgpack.encode(letter))
            return await asyncio.wait_for(asyncio.shield(answered), ANSWER_S)
        except TimeoutError:
            return None
        finally:
            del self._asked[letter.id]

    # --- being asked ---

    async def _read(self) -> None:
        done: dict[str, Letter] = {}  # answers to the latest letters: a repeated one is acted on once
        async for data in self._live.letters():
            try:
                letter = _letter.decode(data)
                if letter.kind == "answer":
                    answered = self._asked.get(letter.id)
                    if answered is not None and not answered.done():
                        answered.set_result(letter)
                    continue
                if letter.kind == "look":
                    self._server.look_at(letter.pool)
                    continue
                if letter.id not in done:
                    done[letter.id] = self._do(letter)
                    if len(done) > 1000:
                        del done[next(iter(done))]
                await self._live.send(letter.sender, msgspec.msgpack.encode(done[letter.id]))
            except (msgspec.MsgspecError, LiveAway) as error:
                self._server.log_exception(error)

    def _do(self, letter: Letter) -> Letter:
        answer = Letter("answer", letter.id, self._live.front)
        run = next((run for run in self._server.runs.values() if letter.response_id in run.ids), None)
        try:
            if letter.kind == "follow" and letter.response_id in self._taking:
                return answer
            if run is None or run.owner != letter.owner:
                raise ApiError(400, "response_already_completed", "The response has ended.")
            if letter.kind == "cancel":
                run.stop("cancelled")
            elif letter.kind == "follow" and run.log is not None:
                run.log.followed_until = time.monotonic() + 10 * LOOK_S
            elif letter.steer is not None:
                answer.steer_id = run.steer(letter.steer).id
        except FulgurError as error:
            answer.code = error.code if isinstance(error, ApiError) else "invalid_input"
            answer.message = error.message
        return answer

    # --- replay ---

    async def replay(self, request: web.Request, owner: str, response_id: str, after: int) -> web.StreamResponse | None:
        """Stream the events after number `after` of a response that runs elsewhere; None when nobody knows it.

        If its front dies meanwhile, this one takes it over.
        """
        server, place = self._server, after + 1
        if await self.find(owner, response_id) is None:
            events = await server.store.events(owner, response_id)  # it may have ended just now
            return None if events is None else await replay.stored(request, events, after)
        sink = await SseSink.open(request)
        away = looked = 0.0
        while not sink.gone():
            run = server.runs.get(response_id)
            if run is not None and run.log is not None:
                await replay.follow(sink, run.log, place)
                break
            try:
                batch = await self._live.events(response_id, place, LOOK_S)
                for data in batch.data if batch is not None else ():
                    replay.send(sink, data)
                    place += 1
                if sink.full():
                    await sink.drain()
                over = batch is not None and batch.ended and not batch.data
                if batch is None or not batch.data or time.monotonic() - looked > FOLLOW_S:
                    looked = time.monotonic()
                    over = over or not await self._look(owner, response_id)
                if over:  # the store has the events that the live state lacks
                    for data in (await server.store.events(owner, response_id) or [])[place:]:
                        replay.send(sink, data)
                    break
                if batch is None:
                    await asyncio.sleep(LOOK_S)
                away = 0.0
            except (LiveAway, StoreAway):
                away = away or time.monotonic()
                if time.monotonic() - away > PATIENCE_S:
                    break
                await asyncio.sleep(LOOK_S)
        return await sink.close()

    async def _look(self, owner: str, response_id: str) -> bool:
        """Whether the response is still running somewhere; takes it over if its front is gone."""
        found = await self.find(owner, response_id)
        if found is None:
            return False
        if found.front != self._live.front and found.front in await self._live.alive("fronts"):
            letter = Letter("follow", new_id("letter"), self._live.front, owner, response_id)
            answer = await self._ask_front(found.front, letter)
            if answer is None or not answer.code:
                return True
            # It does not run there: it has just ended, or that front could not take it over.
            if await self._server.store.events(owner, response_id) is not None:
                return False
        await self._take(found)
        return True

    async def _take(self, found: Running) -> None:
        """Take a response over, in a separate task, so that it is finished even when the client leaves meanwhile."""
        taking = self._taking.get(found.id)
        if taking is None:
            taking = self._taking[found.id] = asyncio.create_task(takeover.take(self._server, found))
            taking.add_done_callback(lambda task: self._taken(found.id, task))
        await asyncio.shield(taking)

    def _taken(self, response_id: str, task: asyncio.Task[Run | None]) -> None:
        del self._taking[response_id]
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, FulgurError):
            self._server.log_exception(error)
