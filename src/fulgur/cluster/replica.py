"""A replica: one engine, offered to any number of fronts over its own socket.

Every front has one connection that carries all its generations. What the engine reports in one iteration of the event
loop is sent as one frame per front. When a front goes, its generations are cancelled: nobody else reads them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import TYPE_CHECKING

from fulgur.cluster import secret as proofs
from fulgur.cluster import wire
from fulgur.cluster.address import Address
from fulgur.cluster.tls import Tls
from fulgur.engine.errors import EngineDied
from fulgur.engine.events import Event, Finished, Token
from fulgur.engine.wire import pack_error
from fulgur.errors import FulgurError

if TYPE_CHECKING:
    from fulgur.engine.generation import Generation
    from fulgur.engine.process import EngineClient

BEAT_S = 1.0  # a front that hears nothing for some beats takes the replica for dead
_PROOF_S = 5.0
_BEHIND = 64 << 20  # bytes that a front may leave unread

log = logging.getLogger("fulgur.cluster")


class Replica:
    """Listens for fronts. `drain` takes no new requests and waits for the running ones."""

    def __init__(self, engine: EngineClient, secret: bytes, fingerprint: str) -> None:
        self.engine = engine
        self.secret = secret
        self.fingerprint = fingerprint
        self.epoch = secrets.token_hex(8)
        self.running = 0
        self.draining = False
        self.address: Address | None = None
        self.peers: set[Peer] = set()
        self._server: asyncio.Server | None = None
        self._beat: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def queued(self) -> int:
        """Prompt tokens that wait to be computed."""
        return sum(peer.queued for peer in self.peers)

    async def listen(self, address: Address, tls: Tls | None = None) -> Address:
        """Start to listen; returns the address, with the port that was chosen for port 0."""
        self._server, self.address = await address.serve(lambda: Peer(self), tls.replica if tls is not None else None)
        self._beat = asyncio.create_task(self._report_load_regularly())
        return self.address

    async def drain(self, seconds: float = 60.0) -> bool:
        """Take no new requests; True when all running ones have ended in time."""
        self.draining = True
        self.report_load()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        return not self.running

    async def close(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        if self._server is not None:
            self._server.close()
        for peer in list(self.peers):
            peer.hang_up()
        await self.engine.close()

    def began(self) -> None:
        self.running += 1
        self._idle.clear()

    def ended(self) -> None:
        self.running -= 1
        if not self.running:
            self._idle.set()

    def report_load(self) -> None:
        for peer in self.peers:
            if peer.proven:
                peer.report_load()

    async def _report_load_regularly(self) -> None:
        while True:
            self.report_load()
            await asyncio.sleep(BEAT_S)


class Peer(asyncio.Protocol):
    """One front."""

    def __init__(self, replica: Replica) -> None:
        self.proven = False
        self.queued = 0  # its prompt tokens that wait to be computed
        self._replica = replica
        self._reader = wire.FrameReader()
        self._nonce = proofs.nonce()
        self._transport: asyncio.Transport | None = None
        self._generations: dict[str, Generation] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reported: list[Event] = []
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_BEHIND)
        self._patience = self._loop.call_later(_PROOF_S, self._give_up)
        self._replica.peers.add(self)
        self.write(wire.frame(wire.Challenge(wire.PROTOCOL, self._nonce)))

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._take(message)
        except FulgurError as error:
            log.warning("closing a connection: %s", error)
            self.hang_up()

    def connection_lost(self, error: Exception | None) -> None:
        self._patience.cancel()
        self._replica.peers.discard(self)
        self._transport = None
        for generation in list(self._generations.values()):
            generation.cancel()

    def pause_writing(self) -> None:
        log.warning("closing a connection: the front does not read")
        self.hang_up()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def report_load(self) -> None:
        """Report how busy the replica is with other fronts; the front itself knows sooner what it asked for."""
        replica = self._replica
        self.write(wire.frame(wire.Load(replica.queued - self.queued, replica.running, replica.draining)))

    def _give_up(self) -> None:
        if not self.proven:
            log.warning("closing a connection: the front did not prove that it knows the cluster's secret")
            self.hang_up()

    def _take(self, message: wire.AnyMessage) -> None:
        if not self.proven:
            self._check(message)
        elif isinstance(message, wire.Submit):
            self._submit(message)
        elif isinstance(message, wire.Cancel):
            if generation := self._generations.get(message.id):
                generation.cancel()
        elif isinstance(message, wire.Steer):
            if generation := self._generations.get(message.id):
                generation.steer(wire.unpack_tokens(message.tokens))
        elif isinstance(message, wire.Drain):
            self._replica.draining = True
            self._replica.report_load()
        else:
            raise FulgurError(f"the front sent an unexpected message: {type(message).__name__}")

    def _check(self, message: wire.AnyMessage) -> None:
        replica = self._replica
        expected = proofs.proof(replica.secret, "front", self._nonce, getattr(message, "nonce", b""))
        if not isinstance(message, wire.Proof) or not proofs.holds(message.proof, expected):
            raise FulgurError("the front does not know the cluster's secret")
        self.proven = True
        self._reader.largest = wire.LARGEST
        ours = proofs.proof(replica.secret, "replica", message.nonce, self._nonce)
        self.write(wire.frame(wire.Ready(ours, replica.engine.info, replica.fingerprint, replica.epoch)))
        self.report_load()

    def _submit(self, message: wire.Submit) -> None:
        try:
            if self._replica.draining:
                raise EngineDied("the replica is shutting down")
            request = wire.request_of(message)
            self._generations[message.id] = generation = self._replica.engine.generate(request)
        except FulgurError as error:
            self.write(wire.frame(wire.Refused(message.id, *pack_error(error))))
            return
        task = self._loop.create_task(self._follow(message.id, generation, len(request.prompt) - message.cached))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, request_id: str, generation: Generation, waiting: int) -> None:
        """Pass on what the engine reports of one generation; `waiting` prompt tokens come before its first token."""
        replica = self._replica
        replica.began()
        self.queued += waiting
        try:
            async for batch in generation.batches():
                for event in batch:
                    event.request_id = request_id
                if waiting and isinstance(batch[-1], Token | Finished):
                    self.queued -= waiting
                    waiting = 0
                self._report(batch)
        except FulgurError as error:
            self._flush()
            self.write(wire.frame(wire.Refused(request_id, *pack_error(error))))
        finally:
            self.queued -= waiting
            del self._generations[request_id]
            replica.ended()

    def _report(self, events: list[Event]) -> None:
        if not self._reported:
            self._loop.call_soon(self._flush)
        self._reported += events

    def _flush(self) -> None:
        if self._reported:
            reported, self._reported = self._reported, []
            self.write(wire.frame(wire.events(reported)))
