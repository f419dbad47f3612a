"""The engine process: `python -m fulgur.engine.worker FD`, started by `process.EngineClient`, never by hand.

Between two steps it reads what has come in, so a cancel or a steer takes effect within one step. It ends when its
socket closes, however the other side went.
"""

from __future__ import annotations

import gc
import select
import signal
import socket
import sys
from collections.abc import Iterator
from time import perf_counter

from fulgur.engine.engine import Engine
from fulgur.engine.events import Event, Steered, Token
from fulgur.engine.load import open_engine
from fulgur.engine.wire import FrameReader, Message, frame, pack_error, pack_events
from fulgur.errors import FulgurError

_READ = 1 << 18
_TOGETHER = 0.012  # seconds within which tokens share a message: less than a frame of a screen


class Closed(Exception):
    """The client is gone."""


class Connection:
    """Messages from and to the client."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = FrameReader()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def read(self, *, wait: bool) -> Iterator[Message]:
        """What has come in; with `wait`, at least some bytes are waited for."""
        if not self._poll.poll(None if wait else 0):
            return
        data = self._socket.recv(_READ)
        if not data:
            raise Closed
        yield from self._reader.feed(data)

    def send(self, message: Message) -> None:
        self._socket.sendall(frame(message))


def serve(engine: Engine, connection: Connection) -> None:
    """Step while there is something to do, and listen between the steps.

    A message costs more than a step of a small model, here and where it arrives: tokens that follow each other closely
    travel together. Everything that is not a token goes out at once, and so does the first token after it.
    """
    events: list[Event] = []
    sent = 0.0
    hurry = False  # what comes next goes out at once
    while True:
        for message in connection.read(wait=not engine.busy):
            handle(engine, connection, message)
        if not engine.busy:
            continue
        new = engine.step()
        events += new
        now = perf_counter()
        only_tokens = all(type(event) is Token for event in new)
        if events and (hurry or now - sent >= _TOGETHER or not only_tokens or not engine.busy):
            hurry = not only_tokens
            connection.send(("events", pack_events(events)))
            events.clear()
            sent = now


def handle(engine: Engine, connection: Connection, message: Message) -> None:
    match message:
        case ("submit", request_id, request):
            try:
                engine.submit(request, request_id)
            except FulgurError as error:
                connection.send(("refused", request_id, pack_error(error)))
        case ("cancel", request_id):
            engine.cancel(request_id)
        case ("steer", request_id, tokens):
            try:
                refusal = None if engine.steer(request_id, tokens) else "the request has finished"
            except FulgurError as error:
                refusal = error.message
            if refusal is not None:
                connection.send(("events", [Steered(request_id, 0, 0, 0, refusal)]))
        case _:
            raise ValueError(f"unknown message {message[0]!r}")


def main(fd: int) -> int:
    """Open what the first message names, say so, and serve until the client is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to whoever started us
    connection = Connection(socket.socket(fileno=fd))
    try:
        waiting: list[Message] = []
        while not waiting:
            waiting.extend(connection.read(wait=True))
        try:
            engine, info = open_engine(waiting[0][1])
        except FulgurError as error:
            connection.send(("failed", pack_error(error)))
            return 1
        connection.send(("ready", info))
        gc.collect()
        gc.freeze()  # what is loaded now stays: the collector need not look at it again
        for message in waiting[1:]:
            handle(engine, connection, message)
        serve(engine, connection)
    except (Closed, ConnectionError):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
