"""A front's connection to one replica, which reconnects when it is lost."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from typing import Protocol

from fulgur.cluster import secret as proofs
from fulgur.cluster import wire
from fulgur.cluster.address import Address
from fulgur.cluster.tls import Tls
from fulgur.engine.load import EngineInfo
from fulgur.errors import FulgurError

SILENCE_S = 6.0  # of silence: the replica or the way to it is gone
_AGAIN_S = (0.05, 1.0)  # seconds between two tries: first, most

log = logging.getLogger("fulgur.cluster")


class Owner(Protocol):
    """Receives what comes over a link."""

    def admits(self, link: Link, info: EngineInfo, fingerprint: str) -> str:
        """Why this replica is of no use; empty when it is."""

    def link_ready(self, link: Link) -> None: ...
    def link_lost(self, link: Link) -> None: ...
    def link_events(self, link: Link, rows: list[object]) -> None: ...
    def link_refused(self, link: Link, message: wire.Refused) -> None: ...


class Link:
    """Slot `number` at an address. Of the prompt tokens that wait there, `own` are this front's, `others` are not.

    The front knows its own at once; the replica reports the others with every heartbeat.
    """

    def __init__(self, owner: Owner, number: int, address: Address, secret: bytes, tls: Tls | None = None) -> None:
        self.number = number
        self.address = address
        self.epoch = ""
        self.info: EngineInfo | None = None
        self.own = self.others = 0
        self.running = 0
        self.ready = False
        self.draining = False
        self.problem = "not reached yet"
        self.closing = False
        self._owner = owner
        self._secret = secret
        self._tls = tls.front if tls is not None else None
        self._wire: _Wire | None = None
        self._task = asyncio.create_task(self._keep())

    @property
    def queued(self) -> int:
        return self.own + self.others

    @property
    def takes(self) -> bool:
        return self.ready and not self.draining

    def send(self, data: bytes) -> None:
        if self._wire is not None:
            self._wire.write(data)

    async def close(self) -> None:
        self.closing = True
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _keep(self) -> None:
        pause = _AGAIN_S[0]
        while True:
            try:
                self._wire = await self.address.connect(lambda: _Wire(self), self._tls)
                await self._wire.closed.wait()
                pause = _AGAIN_S[0] if self.ready else pause
            except ssl.SSLError as error:
                self._say(f"{self.address} cannot be trusted: {getattr(error, 'verify_message', '') or error.reason}")
            except OSError as error:
                self._say(f"{self.address} cannot be reached: {os.strerror(error.errno) if error.errno else error}")
            finally:
                self._lost()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _AGAIN_S[1])

    def _lost(self) -> None:
        if self._wire is not None:
            self._wire.hang_up()
            self._wire = None
        if self.ready:
            self.ready, self.others, self.running = False, 0, 0
            if not self.closing:
                self._say(f"the connection to {self.address} was lost")
            self._owner.link_lost(self)

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("replica %d: %s", self.number, problem)
        self.problem = problem

    # --- callbacks of the wire ---

    def take(self, message: wire.AnyMessage, connection: _Wire) -> None:
        if isinstance(message, wire.Events):
            self._owner.link_events(self, message.rows)
        elif isinstance(message, wire.Load):
            self.others, self.running, self.draining = message.others, message.running, message.draining
        elif isinstance(message, wire.Refused):
            self._owner.link_refused(self, message)
        elif isinstance(message, wire.Challenge) and not self.ready:
            if message.protocol != wire.PROTOCOL:
                raise FulgurError(
                    f"it speaks version {message.protocol} of the protocol, this front speaks {wire.PROTOCOL}"
                )
            connection.challenge = message.nonce
            proof = proofs.proof(self._secret, "front", message.nonce, connection.nonce)
            connection.write(wire.frame(wire.Proof(proof, connection.nonce)))
        elif isinstance(message, wire.Ready) and not self.ready:
            expected = proofs.proof(self._secret, "replica", connection.nonce, connection.challenge)
            if not proofs.holds(message.proof, expected):
                raise FulgurError("it does not know the cluster's secret")
            if wrong := self._owner.admits(self, message.info, message.fingerprint):
                raise FulgurError(wrong)
            self.ready, self.epoch, self.info, self.problem = True, message.epoch, message.info, ""
            connection.reader.largest = wire.LARGEST
            self._owner.link_ready(self)
        else:
            raise FulgurError(f"it sent an unexpected message: {type(message).__name__}")

    def failed(self, error: FulgurError) -> None:
        self._say(f"{self.address}: {error.message}")


class _Wire(asyncio.Protocol):
    """One connection of a link."""

    def __init__(self, link: Link) -> None:
        self.reader = wire.FrameReader()
        self.nonce = proofs.nonce()
        self.challenge = b""
        self.closed = asyncio.Event()
        self._link = link
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._said = False  # the problem was reported
        self._heard = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._heard = self._loop.time()
        self._watch = self._loop.call_later(SILENCE_S, self._look)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        try:
            for message in self.reader.feed(data):
                self._link.take(message, self)
        except FulgurError as error:
            self._fail(error)

    def _fail(self, error: FulgurError) -> None:
        self._said = True
        self._link.failed(error)
        self.hang_up()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._said and not self._link.ready and not self._link.closing:
            why = getattr(error, "reason", None) or "during the handshake"
            self._link.failed(FulgurError(f"it closed the connection ({why})"))
        self._watch.cancel()
        self.closed.set()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _look(self) -> None:
        quiet = self._loop.time() - self._heard
        if quiet >= SILENCE_S:
            if self._link.ready:
                self.hang_up()
            else:
                self._fail(FulgurError("it does not answer; perhaps only one side uses TLS"))
        else:
            self._watch = self._loop.call_later(SILENCE_S - quiet, self._look)
