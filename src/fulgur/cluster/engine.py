"""The replicas of one model, which look to a front like one engine (`engine/process.py`).

A replica that dies costs nothing but time: the front knows every token that was reported, and another replica continues
the answer after them (`GenerateRequest.past`). The seed is chosen here, so the text does not change.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fulgur.cluster import wire
from fulgur.cluster.address import Address
from fulgur.cluster.link import Link
from fulgur.cluster.routing import Pin, Pins, choose
from fulgur.cluster.tls import Tls
from fulgur.engine.errors import EngineDied, InvalidRequest
from fulgur.engine.events import Counts, Event, Finished, Started, SteerOutcome
from fulgur.engine.generation import Generation
from fulgur.engine.load import EngineInfo
from fulgur.engine.params import GenerateRequest
from fulgur.engine.wire import Message, row_events, unpack_error
from fulgur.errors import FulgurError

MOST_ATTEMPTS = 4  # replicas that may die under one answer before it fails
PATIENCE_S = 30.0  # to wait for a replica while there is none


@dataclass(slots=True)
class Flight:
    """A generation, and what is needed to continue it elsewhere."""

    generation: Generation
    request: GenerateRequest
    key: str
    link: Link | None = None
    past: list[list[int]] = field(default_factory=lambda: [[]])  # as in GenerateRequest
    steers: deque[list[int]] = field(default_factory=deque)  # sent, and without an outcome yet
    waiting: int = 0  # prompt tokens that count as queued at the link until its first token comes
    attempts: int = 0
    started: bool = False
    cancelled: bool = False
    pinned: bool = False


@dataclass
class Counted:
    """Counters for the metrics: how well the routing's expectations held."""

    requests: int = 0
    kept: int = 0  # went to the replica that had their session
    moved: int = 0  # left a replica that was overloaded or gone
    taken_up: int = 0  # after a replica's death
    missed: int = 0  # expected in the cache and not there


class ClusterEngine:
    """Made by `start`, used from the event loop it was made in."""

    info: EngineInfo

    def __init__(self, secret: bytes, fingerprint: str, pins: Pins | None = None, tls: Tls | None = None) -> None:
        self.pins = pins or Pins()
        self.counted = Counted()
        self.links: dict[int, Link] = {}
        self._secret = secret
        self._tls = tls
        self._fingerprint = fingerprint
        self._flights: dict[str, Flight] = {}
        self._waiting: dict[str, Flight] = {}  # while there is no replica
        self._made = 0
        self._closed = False
        self._first = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(
        cls,
        members: Mapping[int, Address],
        secret: bytes,
        fingerprint: str,
        patience: float = PATIENCE_S,
        pins: Pins | None = None,
        tls: Tls | None = None,
    ) -> ClusterEngine:
        """Connect to the replicas by their slot numbers, and wait for the first."""
        engine = cls(secret, fingerprint, pins, tls)
        engine.set_members(members)
        await engine.ready(patience)
        return engine

    async def ready(self, patience: float) -> None:
        """Wait for the first replica."""
        try:
            await asyncio.wait_for(self._first.wait(), patience)
        except TimeoutError:
            problems = "; ".join(f"{link.address}: {link.problem}" for link in self.links.values())
            await self.close()
            raise FulgurError(
                f"No replica is ready ({problems or 'none is known'}).",
                hint="Start one with `fulgur cluster replica`, or correct the model's replicas in the config.",
            ) from None

    def set_members(self, members: Mapping[int, Address]) -> None:
        """Replace the list of replicas; others continue the answers of one that is no longer in it."""
        for number, link in list(self.links.items()):
            if members.get(number) != link.address:
                del self.links[number]
                self._later(link.close())
        for number, address in members.items():
            if number not in self.links:
                self.links[number] = Link(self, number, address, self._secret, self._tls)

    def generate(self, request: GenerateRequest, key: str = "") -> Generation:
        """Submit a request; requests with the same key are best served by the same replica."""
        if self._closed:
            raise EngineDied("the engine was closed")
        if request.keep:
            raise InvalidRequest("a replica cannot keep ended generations")
        if request.params.temperature > 0.0 and request.params.seed is None:
            request = replace(request, params=replace(request.params, seed=secrets.randbits(63)))
        self._made += 1
        generation = Generation(f"g{self._made}", request, self._send)
        flight = self._flights[generation.request_id] = Flight(generation, request, key or generation.request_id)
        self.counted.requests += 1
        if self.pins.to_be_fetched(flight.key):
            self._later(self._place_when_fetched(flight))
        else:
            self._place(flight)
        return generation

    async def _place_when_fetched(self, flight: Flight) -> None:
        await self.pins.fetch(flight.key)
        if flight.generation.request_id in self._flights:  # it was not cancelled meanwhile
            self._place(flight)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        self._closed = True
        links, self.links = self.links, {}
        await asyncio.gather(*(link.close() for link in links.values()))
        for flight in list(self._flights.values()):
            self._end(flight, EngineDied("the engine was closed"))

    # --- where a flight goes ---

    def _place(self, flight: Flight) -> None:
        try:
            self._submit(flight)
        except FulgurError as error:  # it cannot be sent
            self._end(flight, error)

    def _submit(self, flight: Flight) -> None:
        slots = [link for link in self.links.values() if link.takes]
        if not slots:
            self._wait(flight)
            return
        pin = self.pins.get(flight.key)
        prompt = len(flight.request.prompt) + sum(map(len, flight.past))
        link, known = choose(flight.key, prompt, slots, pin)
        flight.pinned = pin is not None and (link.number, link.epoch) == (pin.slot, pin.epoch)
        if flight.pinned:
            self.counted.kept += 1
        else:
            self.counted.moved += pin is not None
        self.pins.put(flight.key, Pin(link.number, link.epoch, prompt))
        flight.link = link
        flight.waiting = prompt - known
        link.own += flight.waiting
        past = flight.past if any(flight.past) else []
        request = replace(flight.request, past=past)
        link.send(wire.frame(wire.submit(flight.generation.request_id, request, known)))
        for tokens in flight.steers:
            link.send(wire.frame(wire.Steer(flight.generation.request_id, wire.pack_tokens(tokens))))
        if flight.cancelled:
            link.send(wire.frame(wire.Cancel(flight.generation.request_id)))

    def _wait(self, flight: Flight) -> None:
        flight.link = None
        self._waiting[flight.generation.request_id] = flight
        asyncio.get_running_loop().call_later(PATIENCE_S, self._waited, flight.generation.request_id, flight.attempts)

    def _waited(self, request_id: str, attempts: int) -> None:
        flight = self._waiting.get(request_id)
        if flight is not None and flight.attempts == attempts:
            self._end(flight, EngineDied("no replica of the model is available", hint="Send the request again later."))

    def _again(self, flight: Flight, error: FulgurError) -> None:
        """Continue a flight whose replica is gone at another one."""
        self._computed(flight)
        flight.attempts += 1
        if flight.attempts >= MOST_ATTEMPTS or flight.request.n > 1:
            self._end(flight, error)
            return
        self.counted.taken_up += 1
        self._place(flight)

    def _end(self, flight: Flight, error: FulgurError | None = None) -> None:
        request_id = flight.generation.request_id
        self._computed(flight)
        self._flights.pop(request_id, None)
        self._waiting.pop(request_id, None)
        if error is not None:
            flight.generation.fail(error)

    def _computed(self, flight: Flight) -> None:
        """Stop counting its prompt as queued."""
        if flight.link is not None:
            flight.link.own -= flight.waiting
            flight.waiting = 0

    def _send(self, message: Message) -> None:
        """Pass on a generation's cancel or steer."""
        flight = self._flights.get(message[1])
        if flight is None:
            return
        if message[0] == "cancel":
            if flight.cancelled:
                return
            flight.cancelled = True
            if flight.link is None:  # it never began, or waits to be continued
                self._waiting.pop(message[1], None)
                self._end(flight)
                flight.generation.deliver([Finished(message[1], 0, "cancelled", Counts())])
            else:
                flight.link.send(wire.frame(wire.Cancel(message[1])))
        else:
            flight.steers.append(message[2])
            if flight.link is not None:
                flight.link.send(wire.frame(wire.Steer(message[1], wire.pack_tokens(message[2]))))

    # --- callbacks of the links ---

    def admits(self, link: Link, info: EngineInfo, fingerprint: str) -> str:
        if fingerprint != self._fingerprint:
            return f"it serves another model ('{info.model}', its config or tokenizer differs)"
        known = getattr(self, "info", None)
        if known is not None and _bits(known) != _bits(info):
            return f"its engine is not bit-identical to the first replica's: {_bits(info)} instead of {_bits(known)}"
        return ""

    def link_ready(self, link: Link) -> None:
        if not self._first.is_set() and link.info is not None:
            self.info = link.info
            self._first.set()
        waiting, self._waiting = self._waiting, {}
        for flight in waiting.values():
            self._place(flight)

    def link_lost(self, link: Link) -> None:
        lost = EngineDied("the replica was lost", hint="Send the request again.")
        for flight in [flight for flight in self._flights.values() if flight.link is link]:
            self._again(flight, lost)

    def link_refused(self, link: Link, message: wire.Refused) -> None:
        flight = self._flights.get(message.id)
        if flight is None or flight.link is not link:
            return
        error = unpack_error((message.code, message.message, message.hint))
        if isinstance(error, EngineDied):
            self._again(flight, error)
        else:
            self._end(flight, error)

    def link_events(self, link: Link, rows: list[Any]) -> None:
        by_flight: dict[str, list[Event]] = {}
        for row in rows:
            if type(row) is list:
                flight = self._flights.get(row[0])
                if flight is not None and flight.link is link:
                    if flight.waiting:
                        self._computed(flight)
                    flight.past[-1] += row[2]
                    by_flight.setdefault(row[0], []).extend(row_events(row))
                continue
            for event in row_events(row):
                flight = self._flights.get(event.request_id)
                if flight is not None and flight.link is link and self._note(flight, event):
                    by_flight.setdefault(event.request_id, []).append(event)
        for request_id, events in by_flight.items():
            flight = self._flights[request_id]
            flight.generation.deliver(events)
            if flight.generation.done:
                self._end(flight)

    def _note(self, flight: Flight, event: Event) -> bool:
        """Keep what the next replica would need; False for an event that the caller has seen already."""
        if isinstance(event, Started):
            if flight.pinned and not event.cached_tokens:
                self.counted.missed += 1
                self.pins.drop(flight.key)
            first, flight.started = not flight.started, True
            return first
        if isinstance(event, SteerOutcome) and flight.steers:
            tokens = flight.steers.popleft()
            if event.message is None:
                flight.past += [tokens, []]
        return True


def _bits(info: EngineInfo) -> tuple[object, ...]:
    """The properties that decide the bits of an answer."""
    return info.vocab_size, info.weight_bytes, "cuda" if info.runtime == "cuda" else "cpu"


def members(addresses: Iterable[str]) -> dict[int, Address]:
    """A static list of replicas: the place in it is the slot number."""
    return {number: Address.parse(text) for number, text in enumerate(addresses)}
