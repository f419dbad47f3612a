"""A backend that plays a script: deterministic answers, at any pace, with any failure. For tests and measurements.

A script is a TOML or JSON file, or the same as objects:

    rate = 2000            # tokens a second; 0: as fast as they are read
    prefill_rate = 50000   # input tokens a second that are not in the cache; 0: at once
    [[reply]]
    match = "rename"       # regular expression over the last user text; left out: any
    after = "function_call_output"   # kind of the last input item; left out: any
    times = 1              # how often this reply may be used; left out: always
    steps = [{text = "On it."}, {call = "exec_command", arguments = {cmd = "ls"}}, {delay = 0.1}, {tokens = 500},
             {reasoning = "hm"}, {custom = "apply_patch", input = "*** Begin Patch"}, {fail = "the engine died"}]

Without a matching reply it echoes the last user text.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from fulgur.backends.base import Backend, Capabilities, Completion, Conversation, Generation, Turn
from fulgur.backends.messages import open_message
from fulgur.backends.script import Reply, Script, Step, load_script, opening
from fulgur.errors import FulgurError
from fulgur.protocol.errors import context_exceeded
from fulgur.protocol.items import Item, item_type, text_of
from fulgur.text.parts import Begin, CallEnd, Finish, Part, ReasoningDelta, Steered, TextDelta, Usage

__all__ = ["Reply", "Script", "ScriptedBackend", "Step", "load_script"]

_LARGE = 1 << 16  # bytes
_CATCH_UP = 0.05  # seconds: after a longer stall it goes on at its pace, as an engine would
TOKEN = re.compile(r"\s*\w{1,6}|\s*[^\w\s]{1,3}|\s+")


class ScriptedBackend(Backend):
    """Plays a `Script`; counts tokens and keeps a prefix cache as a real engine would."""

    kind = "scripted"

    def __init__(self, name: str, script: Script, *, context: int = 200_000, capabilities: Capabilities | None = None):
        self.name = name
        self.script = script
        self.capabilities = capabilities or Capabilities(
            context=context, fim=True, edit=True, reasoning=True, vision=True
        )
        self.running = 0  # generations under way: tests look at it to see that a vanished client frees the engine
        self._used: dict[int, int] = {}

    def generate(self, turn: Turn) -> Generation:
        tokens = self._count(turn)
        if tokens >= self.capabilities.context:
            raise context_exceeded(self.name, tokens, self.capabilities.context)
        return ScriptedGeneration(self, turn, tokens)

    def complete(self, completion: Completion) -> Generation:
        prompt = completion.prompt if isinstance(completion.prompt, str) else f"{len(completion.prompt)} tokens"
        text = f"{prompt}␣{completion.suffix}" if completion.suffix else prompt
        item = {"type": "message", "role": "user", "content": text}
        return self.generate(Turn(Conversation([item]), sampling=completion.sampling))

    async def prefill(self, turn: Turn, *, unfinished: bool = False) -> Usage:
        tokens = self._count(turn)
        cached = self.cached(turn.conversation)
        await self.take_time_to_prefill(tokens - cached)
        self.keep(turn.conversation)
        return Usage(input_tokens=tokens, cached_tokens=cached)

    async def count(self, turn: Turn) -> int:
        return self._count(turn)

    def reply_to(self, conversation: Conversation) -> list[Step]:
        """The steps of the first reply that fits, else an echo."""
        last = conversation.last()
        kind = item_type(last) if last else ""
        text = last_user_text(conversation)
        for index, reply in enumerate(self.script.reply):
            if reply.after is not None and reply.after != kind:
                continue
            if reply.match is not None and not re.search(reply.match, text):
                continue
            if reply.times is not None:
                if self._used.get(index, 0) >= reply.times:
                    continue
                self._used[index] = self._used.get(index, 0) + 1
            return reply.steps
        return [Step(text=f"You said: {text}")]

    def cached(self, conversation: Conversation) -> int:
        part: Conversation | None = conversation
        while part is not None:
            if "scripted.cached" in part.memo:
                return int(part.memo["scripted.tokens"])
            part = part.parent
        return 0

    def keep(self, conversation: Conversation) -> None:
        conversation.memo["scripted.cached"] = True

    async def take_time_to_prefill(self, tokens: int) -> None:
        if self.script.prefill_rate:
            await asyncio.sleep(tokens / self.script.prefill_rate)

    def _count(self, turn: Turn) -> int:
        return count_conversation(turn.conversation) + len(turn.instructions or "") // 4


class ScriptedGeneration(Generation):
    def __init__(self, backend: ScriptedBackend, turn: Turn, tokens: int) -> None:
        self._backend = backend
        self._turn = turn
        self._conversation = turn.conversation
        self._usage = Usage(input_tokens=tokens, cached_tokens=backend.cached(turn.conversation))
        self._said: list[str] = []  # since the last steer
        self._stopped = False
        self._steers: list[Item] = []
        self._ended = False
        self._pause: asyncio.Future[None] | None = None

    def cancel(self) -> None:
        self._stopped = True
        self._wake()

    def steer(self, items: list[Item]) -> bool:
        if self._ended or self._stopped:
            return False
        self._steers += items
        self._wake()
        return True

    async def __aiter__(self) -> AsyncIterator[Part]:
        backend, usage = self._backend, self._usage
        backend.running += 1
        try:
            await self._sleep(self._prefill_seconds())
            backend.keep(self._conversation)
            yield Begin(usage.input_tokens, usage.cached_tokens)
            reason = ""
            while not reason:
                async for part in self._play(backend.reply_to(self._conversation)):
                    if isinstance(part, Finish):
                        reason = part.reason
                    else:
                        yield part
                if self._steers and not self._stopped:
                    reason = ""
                    old, steers = self._usage, self._steers
                    self._take_steers()
                    yield Steered(steers, old, Begin(self._usage.input_tokens, self._usage.cached_tokens))
            self._ended = True
            yield Finish(reason, self._usage)
        finally:
            self._ended = True
            backend.running -= 1

    async def _play(self, steps: list[Step]) -> AsyncIterator[Part]:
        """The parts of the steps, one token at a time, until the end, a cancel or a steer."""
        limit = self._turn.sampling.max_tokens
        interval = 1 / self._backend.script.rate if self._backend.script.rate else 0.0
        loop = asyncio.get_running_loop()
        due = loop.time()
        called = False
        said = open_message(self._conversation)
        for step in steps:
            if step.delay:
                await self._sleep(step.delay)
                due = loop.time()
            if step.fail is not None:
                raise FulgurError(step.fail)
            start, kind, text = opening(step)
            if said and kind is TextDelta and text.startswith(said):
                text, said = text[len(said) :], None  # continue a message that was begun
            called |= start is not None
            if start is not None and not self._interrupted():
                yield start
            for match in TOKEN.finditer(text):
                if interval:
                    due = max(due + interval, loop.time() - _CATCH_UP)
                    await self._sleep(due - loop.time())
                else:
                    await asyncio.sleep(0)
                if self._stopped or self._steers:
                    yield Finish("cancelled", self._usage)
                    return
                if limit is not None and self._usage.output_tokens >= limit:
                    yield Finish("length", self._usage)
                    return
                token = match.group()
                self._usage.output_tokens += 1
                if kind is TextDelta:
                    self._said.append(token)
                elif kind is ReasoningDelta:
                    self._usage.reasoning_tokens += 1
                yield kind(token)
            if self._interrupted():
                yield Finish("cancelled", self._usage)
                return
            if start is not None:
                yield CallEnd()
        yield Finish("tool_calls" if called else "stop", self._usage)

    def _take_steers(self) -> None:
        text = "".join(self._said)
        said: list[Item] = [{"type": "message", "role": "assistant", "content": text}] if text else []
        held = self._usage.input_tokens + self._usage.output_tokens
        self._conversation = self._conversation.extend([*said, *self._steers])
        self._backend.keep(self._conversation)
        self._usage = Usage(input_tokens=count_conversation(self._conversation), cached_tokens=held)
        self._said, self._steers = [], []

    def _prefill_seconds(self) -> float:
        rate = self._backend.script.prefill_rate
        return (self._usage.input_tokens - self._usage.cached_tokens) / rate if rate else 0.0

    def _interrupted(self) -> bool:
        return self._stopped or bool(self._steers)

    async def _sleep(self, seconds: float) -> None:
        """Wait; a cancel or a steer ends the wait early."""
        if self._interrupted():
            return
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        self._pause = loop.create_future()
        timer = loop.call_later(seconds, self._wake)
        try:
            await self._pause
        finally:
            timer.cancel()

    def _wake(self) -> None:
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)


def last_user_text(conversation: Conversation) -> str:
    def later(text: str, part: Conversation) -> str:
        users = [item for item in part.items if item_type(item) == "message" and item.get("role") == "user"]
        return text_of(users[-1]) if users else text

    return conversation.fold("scripted.user", "", later)


def count_conversation(conversation: Conversation) -> int:
    """An estimate: about four characters a token."""

    def more(total: int, part: Conversation) -> int:
        if part.own_size() > _LARGE:  # writing it out would hold up the event loop
            return total + part.own_size() // 4
        return total + sum(len(str(item)) // 4 + 1 for item in part.items)

    return conversation.fold("scripted.tokens", 0, more)
