"""What other fronts need to know of a stored response while it runs: the request, and its events as they come.

The journal is kept in the live state, so that any front can replay the response, and finish it when this one dies
(`takeover.py`). A response that is not stored, or a server that shares nothing, has no journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from fulgur.backends.base import Conversation, Turn
from fulgur.backends.prompts import Prompt, memo_key
from fulgur.protocol.items import Item
from fulgur.protocol.response import Response
from fulgur.server.live.base import KEEP_S, LEASE_S, LiveAway, Running
from fulgur.server.steering import Steer

if TYPE_CHECKING:
    from fulgur.server.run import Run


AGAIN_S = 0.5  # between two tries with a live state that is away
MOST_AT_ONCE = 1000  # events


class Record(msgspec.Struct):
    """A `Prepared` that another front can read; its conversation is that of `parent` plus the input."""

    model: str
    turn: Turn
    response: Response
    input: list[Item]
    parent: str | None
    generate: bool
    seal_reasoning: bool
    compact: bool
    lane: str | None


class KeptSteer(msgspec.Struct):
    """An accepted steer; a front that takes the response over returns its words to the client."""

    id: str
    response_id: str
    input: str | list[Item]


def _without_conversation(value: Any) -> None:
    if not isinstance(value, Conversation):
        raise TypeError(f"a record holds a {type(value).__name__}")


_encode = msgspec.msgpack.Encoder(enc_hook=_without_conversation).encode
_decoder = msgspec.msgpack.Decoder(Record, dec_hook=lambda kind, value: Conversation([]))
_steers = msgspec.msgpack.Decoder(list[KeptSteer])


def read(data: bytes) -> Record:
    return _decoder.decode(data)


def read_steers(data: bytes | None) -> list[KeptSteer]:
    return _steers.decode(data) if data else []


def prompt_key(response_id: str) -> str:
    return f"prompt:{response_id}"


def steers_key(response_id: str) -> str:
    return f"steers:{response_id}"


class Journal:
    """Follows the log of one response of a run and copies it."""

    def __init__(self, run: Run) -> None:
        assert run.log is not None
        self._run = run
        self._live = run.server.live
        self._id, self._attempt = run.response.id, run.attempt
        self._log = run.log
        self._steers: list[KeptSteer] = []
        self._wake = asyncio.Event()
        self._log.copied = self._wake.set
        self._task: asyncio.Task[None] | None = None
        self._untold: Running | None = None  # what the live state does not know yet

    async def open(self) -> None:
        """Announce the run before its first event is sent, so that a client can find the response at any front."""
        run = self._run
        if run.attempt == 1:
            fix_the_seed(run)
            self._untold = Running(self._id, run.owner, self._live.front, 1, _encode(_record(run)))
        with contextlib.suppress(LiveAway):  # the answer goes on, and is announced later
            if not await self._begun():
                return
        self._task = asyncio.create_task(self._copy())
        run.server.background.add(self._task)
        self._task.add_done_callback(run.server.background.discard)

    async def _begun(self) -> bool:
        """Announce the run, unless that was done; False when its id is taken."""
        if self._untold is not None:
            if not await self._live.begin(self._untold):
                return False
            self._untold = None
        return True

    def steered(self, steer: Steer) -> None:
        """Keep the words of a steer that was accepted."""
        self._steers.append(KeptSteer(steer.id, steer.response_id, steer.input))
        self._wake.set()

    async def _copy(self) -> None:
        place, steers, prompt = self._log.known, 0, False
        while True:
            self._wake.clear()
            try:
                if not await self._begun():
                    return
                if not prompt and (tokens := prompt_of(self._run)) is not None:
                    await self._live.put(prompt_key(self._id), tokens, LEASE_S + KEEP_S)
                    prompt = True
                if len(self._steers) > steers:  # before the event that says that it was accepted
                    kept = self._steers.copy()
                    await self._live.put(steers_key(self._id), msgspec.msgpack.encode(kept), KEEP_S)
                    steers = len(kept)
                new = [data for _, data in self._log.events[place : place + MOST_AT_ONCE]]
                if new:
                    there = await self._live.append(self._id, self._attempt, place, new)
                    if there is None:
                        self._run.stop("overtaken")
                        return
                    if there < place:  # the live state has lost its data: send everything again
                        steers, prompt = 0, False
                    place = there
                    continue
            except LiveAway:
                if not self._log.ended:  # if it has, the store has the events
                    await asyncio.sleep(AGAIN_S)
                    continue
            if self._log.ended:
                if self._run.stopped != "overtaken":  # if overtaken, another front ends it
                    await self._live.end(self._id, self._attempt)
                return
            await self._wake.wait()


def prompt_of(run: Run) -> bytes | None:
    """The prompt of a later turn, once known. It holds earlier answers as the tokens the model sampled, which another
    front could not recover from their text."""
    known = run.conversation.memo.get(memo_key(run.prepared.entry.name)) if run.prepared.parent is not None else None
    return msgspec.msgpack.encode((known[-1].text, known[-1].tokens)) if known else None


def use_prompt(conversation: Conversation, model: str, kept: bytes | None) -> None:
    if kept is not None:
        text, tokens = msgspec.msgpack.decode(kept, type=tuple[str, list[int]])
        conversation.memo[memo_key(model)] = [Prompt(text, tokens)]


def fix_the_seed(run: Run) -> None:
    """Fix the seed: a front that takes the answer over must sample the same tokens."""
    turn = run.prepared.turn
    if turn.sampling.seed is None and run.prepared.entry.backend.kind == "local":
        turn.sampling = replace(turn.sampling, seed=secrets.randbits(31))


def _record(run: Run) -> Record:
    prepared = run.prepared
    return Record(
        prepared.entry.name,
        prepared.turn,
        prepared.response,
        prepared.input,
        prepared.parent,
        prepared.generate,
        prepared.seal_reasoning,
        prepared.compact,
        run.stream_id,
    )
