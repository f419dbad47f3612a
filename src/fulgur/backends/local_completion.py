"""A completion at a cursor by a model that knows the edit format: the same prompt whoever asks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

from fulgur.backends.base import Begin, Chunk, Completion, Finish, Generation, TextDelta
from fulgur.backends.local_generation import LocalGeneration
from fulgur.protocol.items import Item
from fulgur.text.code_prompt import CodePrompt

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

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        prompt: CodePrompt | None = await self._backend.at_cursor(self._asked)
        while prompt is not None:
            sampling = replace(self._asked.sampling, max_tokens=prompt.max_tokens)
            tokens = self._backend.encoded(prompt).tokens
            self._running = LocalGeneration(self._backend, Completion(tokens, sampling=sampling))
            if self._cancelled:
                self._running.cancel()
            async with contextlib.aclosing(_begun(self._running, prompt)) as chunks:
                async for chunk in chunks:
                    if chunk is None:
                        break
                    self.more = self._running.more
                    yield chunk
                else:
                    return
            prompt = prompt.plain


async def _begun(generation: LocalGeneration, prompt: CodePrompt) -> AsyncGenerator[Chunk | None]:
    """The chunks after `prompt.begins`; None when the answer begins otherwise."""
    begin: Begin | None = None
    rest = prompt.begins
    async for chunk in generation:
        if rest and isinstance(chunk, Begin):
            begin = chunk
            continue
        if rest and isinstance(chunk, TextDelta):
            if not chunk.text.startswith(rest):
                yield None
                return
            if begin is not None:
                yield begin
            chunk, rest = TextDelta(chunk.text[len(rest) :], chunk.logprobs), ""
            if not chunk.text:
                continue
        elif rest and isinstance(chunk, Finish) and chunk.reason != "cancelled":
            yield None
            return
        yield chunk
