"""A completion at a cursor by a model that knows the edit format: the same prompt whoever asks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

from fulgur.backends.base import Completion, Generation
from fulgur.backends.local_generation import LocalGeneration
from fulgur.protocol.items import Item
from fulgur.text.code_prompt import CodePrompt
from fulgur.text.parts import Begin, Finish, Part, TextDelta

if TYPE_CHECKING:
    from fulgur.backends.local import LocalBackend


class CursorCompletion(Generation):
    """The sign before the cursor may be left to the model; an answer that begins otherwise is asked for again."""

    def __init__(self, backend: LocalBackend, completion: Completion) -> None:
        self._backend = backend
        self._asked = completion
        self._running: LocalGeneration | None = None
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        if self._running is not None:
            self._running.cancel()

    def steer(self, items: list[Item]) -> bool:
        return False

    async def __aiter__(self) -> AsyncIterator[Part]:
        prompt: CodePrompt | None = await self._backend.at_cursor(self._asked)
        while prompt is not None:
            sampling = replace(self._asked.sampling, max_tokens=prompt.max_tokens)
            tokens = self._backend.encoded(prompt).tokens
            self._running = LocalGeneration(
                self._backend, Completion(tokens, sampling=sampling, owner=self._asked.owner)
            )
            if self._cancelled:
                self._running.cancel()
            async with contextlib.aclosing(_begun(self._running, prompt)) as parts:
                async for part in parts:
                    if part is None:
                        break
                    self.more = self._running.more
                    yield part
                else:
                    return
            prompt = prompt.plain


async def _begun(generation: LocalGeneration, prompt: CodePrompt) -> AsyncGenerator[Part | None]:
    """The parts after `prompt.begins`; None when the answer begins otherwise."""
    begin: Begin | None = None
    rest = prompt.begins
    async for part in generation:
        if rest and isinstance(part, Begin):
            begin = part
            continue
        if rest and isinstance(part, TextDelta):
            if not part.text.startswith(rest):
                yield None
                return
            if begin is not None:
                yield begin
            part, rest = TextDelta(part.text[len(rest) :], part.logprobs), ""
            if not part.text:
                continue
        elif rest and isinstance(part, Finish) and part.reason != "cancelled":
            yield None
            return
        yield part
