"""A completion at a cursor by a model that knows the edit format: the same prompt and gate for every caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fulgur.backends.base import Completion, Generation, Sampling
from fulgur.backends.local_generation import LocalGeneration
from fulgur.protocol.items import Item
from fulgur.text.edit_format import encode_pieces
from fulgur.text.parts import Finish, Part, TextDelta, Usage
from fulgur.text.search import ALTERNATIVES, Candidate, best, beyond, branches
from fulgur.text.sure import SURE, SureText

if TYPE_CHECKING:
    from fulgur.backends.local import LocalBackend
    from fulgur.text.code_prompt import CodePrompt


class CursorCompletion(Generation):
    """Gives the rest of a line as far as the model is sure of it, and generates no further token.

    Where the whole line is asked for, it gives the best of several.
    """

    def __init__(self, backend: LocalBackend, completion: Completion) -> None:
        self._backend = backend
        self._asked = completion
        self._running: LocalGeneration | None = None
        self._branches: list[LocalGeneration] = []
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        if self._running is not None:
            self._running.cancel()
        for branch in self._branches:
            branch.cancel()

    def steer(self, items: list[Item]) -> bool:
        return False

    async def __aiter__(self) -> AsyncIterator[Part]:
        asked = self._asked
        prompt = await self._backend.at_cursor(asked)
        least = asked.min_probability
        if least is None:
            offered = prompt.one_line and asked.suffix is not None  # an editor shows it as somebody types
            least = SURE if offered else 0.0
        sampling = replace(asked.sampling, max_tokens=prompt.max_tokens, begins=prompt.begins)
        searching = least <= 0.0 and asked.suffix is not None and self._plain()
        if searching:
            sampling.top_logprobs = ALTERNATIVES
        elif least > 0.0 and sampling.top_logprobs is None:
            sampling.top_logprobs = 0  # the chosen token's own is enough
        tokens = self._backend.encoded(prompt).tokens
        running = LocalGeneration(self._backend, Completion(tokens, sampling=sampling, owner=asked.owner))
        self._running = running
        if self._cancelled:
            running.cancel()
        if least <= 0.0:
            async for part in self._searched(prompt, running) if searching else running:
                self.more = running.more
                yield part
            return
        sure, held = SureText(least), TextDelta("")
        async for part in running:
            if isinstance(part, TextDelta):
                if sure.add(part.text, running.log_probability):
                    held.logprobs = [*(held.logprobs or ()), *(part.logprobs or ())]
                else:
                    running.stop("stop")
                continue
            if isinstance(part, Finish):
                held.text = sure.text(running.log_probability, ended=part.reason == "stop")
                if held.text:
                    if asked.sampling.top_logprobs is None:
                        held.logprobs = None
                    yield held
            self.more = running.more
            yield part

    def _plain(self) -> bool:
        """Whether the request wants the likeliest line and nothing else, such as its log-probabilities."""
        sampling, default = self._asked.sampling, self._backend.default_temperature
        others = replace(sampling, max_tokens=None, temperature=None, seed=None)
        greedy = (default if sampling.temperature is None else sampling.temperature) == 0
        return greedy and others == Sampling(stop=["\n"])

    async def _searched(self, prompt: CodePrompt, running: LocalGeneration) -> AsyncIterator[Part]:
        """The best line of several (`text/search.py`); every token generated for it counts."""
        written = ""
        async for part in running:
            if isinstance(part, TextDelta):
                written += part.text
            elif isinstance(part, Finish):
                if part.reason == "stop":
                    found = [Candidate(written, running.log_probability)]
                    found += await self._alternatives(prompt, running, part.usage)
                    forward = await self._read_forward(prompt, {one.text for one in found}, part.usage)
                    written = best(found, *prompt.around, prompt.path, forward).text
                if written:
                    yield TextDelta(written)
                yield part
            else:
                yield part

    async def _read_forward(self, prompt: CodePrompt, lines: Collection[str], usage: Usage) -> dict[str, float]:
        """The log-probability of each line with the lines that follow it; empty when there are none, or no choice."""
        if not prompt.following or len(lines) < 2:
            return {}
        backend = self._backend
        tokens = encode_pieces(backend.prompts.tokenizer, prompt.forward)
        texts = {line: f"{prompt.begins}{line}{prompt.following}" for line in lines}
        sampling = Sampling(max_tokens=1, temperature=0.0, top_logprobs=0, weigh_begins=True)
        self._branches = [
            LocalGeneration(
                backend, Completion(tokens, sampling=replace(sampling, begins=text), owner=self._asked.owner)
            )
            for text in texts.values()
        ]
        if self._cancelled:
            self.cancel()
        ends = await asyncio.gather(*map(_read, self._branches))
        usage.output_tokens += sum(end.tokens for end in ends)
        given = {line: len(backend.spelled(text)) for line, text in texts.items()}
        return {
            line: sum(step.log_probability for step in generation.steps[: given[line]])
            for line, generation in zip(texts, self._branches, strict=True)
        }

    async def _alternatives(self, prompt: CodePrompt, running: LocalGeneration, usage: Usage) -> list[Candidate]:
        backend = self._backend
        tokenizer = backend.prompts.tokenizer
        tokens = backend.encoded(prompt).tokens
        stops = backend.stop_tokens()

        def decode(spelled: Sequence[int]) -> str:
            return tokenizer.decode(list(spelled), skip_special=False)

        found = branches(running.steps, prompt.begins, decode, stops)
        sampling = replace(self._asked.sampling, top_logprobs=0)
        given = backend.spelled(prompt.begins)
        limits = [prompt.max_tokens - beyond(branch.tokens, given) for branch in found]
        going_on = [
            (branch, limit) for branch, limit in zip(found, limits, strict=True) if not branch.ended and limit > 0
        ]
        self._branches = [
            LocalGeneration(
                backend,
                Completion(
                    [*tokens, *branch.tokens],
                    sampling=replace(sampling, max_tokens=limit),
                    owner=self._asked.owner,
                ),
            )
            for branch, limit in going_on
        ]
        if self._cancelled:
            self.cancel()
        ends = await asyncio.gather(*map(_read, self._branches))
        lines = [Candidate(branch.text, branch.log_probability) for branch in found if branch.ended]
        for (branch, _), end, generation in zip(going_on, ends, self._branches, strict=True):
            usage.output_tokens += end.tokens
            if end.ended:
                lines.append(Candidate(branch.text + end.text, branch.log_probability + generation.log_probability))
        return lines


@dataclass(frozen=True)
class _End:
    text: str
    tokens: int
    ended: bool


async def _read(generation: LocalGeneration) -> _End:
    text, tokens, ended = "", 0, False
    async for part in generation:
        if isinstance(part, TextDelta):
            text += part.text
        elif isinstance(part, Finish):
            tokens, ended = part.usage.output_tokens, part.reason == "stop"
    return _End(text, tokens, ended)
