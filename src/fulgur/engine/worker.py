"""The engine process: `python -m fulgur.engine.worker FD`, started by `process.EngineClient`, never by hand.

Between two steps it reads the messages that have arrived, so a cancel or a steer takes effect within one step. It ends
when its socket closes, no matter how the other side ended.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING

from fulgur.engine.engine import Engine
from fulgur.engine.events import Event, SteerOutcome, Token
from fulgur.engine.load import open_engine
from fulgur.engine.wire import FrameReader, Message, frame, pack_error
from fulgur.errors import FulgurError

if TYPE_CHECKING:
    from fulgur.text.grammar import GrammarSpec

_READ = 1 << 18
_TOGETHER = 0.012  # seconds within which tokens share a message: less than one frame of a display


class Closed(Exception):
    """The client is gone."""


class Connection:
    """Messages from and to the client."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = FrameReader()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._woken, self._wake = os.pipe()
        self._poll.register(self._woken, select.POLLIN)

    def wake(self) -> None:
        """End the wait of `read`; from any thread."""
        os.write(self._wake, b"!")

    def read(self, *, wait: bool) -> Iterator[Message]:
        """The messages that have arrived; with `wait`, block until some bytes (or a `wake`) have."""
        ready = self._poll.poll(None if wait else 0)
        if any(fd == self._woken for fd, _ in ready):
            os.read(self._woken, 4096)
        if all(fd == self._woken for fd, _ in ready):
            return
        data = self._socket.recv(_READ)
        if not data:
            raise Closed
        yield from self._reader.feed(data)

    def send(self, message: Message) -> None:
        self._socket.sendall(frame(message))


class Grammars:
    """Prepares grammars on a thread, so that the other answers go on. Messages about the request wait meanwhile."""

    def __init__(self, engine: Engine, connection: Connection) -> None:
        self._tokenizer = engine.tokenizer
        self._connection = connection
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._held: dict[str, tuple[Future[None], list[Message]]] = {}

    def hold(self, message: Message) -> bool:
        """Keep a message that has to wait for the grammar of its request; False if it does not."""
        if message[1] in self._held:
            self._held[message[1]][1].append(message)
        elif message[0] == "submit" and message[2].params.grammar is not None:
            making = self._thread.submit(self._make, message[2].params.grammar)
            self._held[message[1]] = making, [message]
            making.add_done_callback(lambda _: self._connection.wake())
        else:
            return False
        return True

    def ready(self) -> list[Message]:
        """The messages whose grammar is ready now."""
        done = [request_id for request_id, (making, _) in self._held.items() if making.done()]
        return [message for request_id in done for message in self._held.pop(request_id)[1]]

    def _make(self, spec: GrammarSpec) -> None:
        from fulgur.text.grammar import Grammar, GrammarMatcher

        with contextlib.suppress(FulgurError):  # raised again, and reported, when the request is submitted
            GrammarMatcher(Grammar.unchecked(spec), self._tokenizer)


def serve(engine: Engine, connection: Connection) -> None:
    """Step while there is something to do, and listen between the steps.

    A message costs more than a step of a small model, here and at the receiver, so tokens that follow each other
    closely share one. Everything that is not a token goes out at once, and so does the first token after it.
    """
    events: list[Event] = []
    sent = 0.0
    hurry = False  # the next events go out at once
    grammars = Grammars(engine, connection)
    while True:
        for message in connection.read(wait=not engine.busy):
            if not grammars.hold(message):
                handle(engine, connection, message)
        for message in grammars.ready():
            handle(engine, connection, message)
        if not engine.busy:
            continue
        new = engine.step()
        events += new
        now = perf_counter()
        only_tokens = all(type(event) is Token for event in new)
        if events and (hurry or now - sent >= _TOGETHER or not only_tokens or not engine.busy):
            hurry = not only_tokens
            connection.send(("events", events))
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
                connection.send(("events", [SteerOutcome(request_id, 0, 0, 0, refusal)]))
        case _:
            raise ValueError(f"unknown message {message[0]!r}")


def main(fd: int) -> int:
    """Open the model that the first message names, report it, and serve until the client is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us
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
        gc.freeze()  # what is loaded now stays, so the collector need not visit it again
        for message in waiting[1:]:
            handle(engine, connection, message)
        serve(engine, connection)
    except (Closed, ConnectionError):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
