"""One growing list of tokens and its state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fulgur.engine.events import Counts, Event, Finished, FinishReason, Token, TokenLogprob
from fulgur.engine.params import GenerateRequest
from fulgur.errors import FulgurError

if TYPE_CHECKING:
    from fulgur.engine.begin import Beginning
    from fulgur.engine.cache import BlockTable
    from fulgur.engine.runtime import Bits, Decoder, Matcher
    from fulgur.engine.sample import Sampler
    from fulgur.engine.speculate import Speculator
    from fulgur.engine.stop import StopStrings


class Sequence:
    """The tokens of one continuation. The first `computed` of them have their keys and values in the cache.

    What lies between `computed` and the end is still to be run: one token while decoding, more while a prompt or a
    steer is prefilled, everything after a preemption.
    """

    __slots__ = (
        "admitted_at",
        "beginning",
        "commit_at",
        "computed",
        "context",
        "decoder",
        "finished",
        "first_token_at",
        "followers",
        "index",
        "matcher",
        "max_tokens",
        "message",
        "owner",
        "prefill_only",
        "request_id",
        "sampler",
        "slot",
        "speculator",
        "started",
        "stop_ids",
        "stops",
        "table",
        "tokens",
        "usage",
    )

    def __init__(self, request_id: str, index: int, request: GenerateRequest, context: int) -> None:
        self.request_id = request_id
        self.owner = request.owner
        self.index = index
        self.tokens = list(request.prompt)
        self.max_tokens = request.params.max_tokens  # what this answer may still add; a steer resets it
        self.context = context
        self.prefill_only = request.prefill_only
        self.computed = 0
        self.slot = -1
        self.table: BlockTable | None = None
        self.commit_at = 0  # the length at which its next block is full
        self.sampler: Sampler | None = None
        self.matcher: Matcher | None = None
        self.beginning: Beginning | None = None
        self.speculator: Speculator | None = None
        self.decoder: Decoder  # set when an answer begins
        self.stops: StopStrings | None = None
        self.followers: list[Sequence] = []  # continuations that fork from this one once the prompt is computed
        self.stop_ids: frozenset[int] = frozenset()
        self.started = False
        self.finished: FinishReason | None = None
        self.message: str | None = None
        self.usage = Counts(prompt_tokens=len(self.tokens))
        self.admitted_at = 0.0
        self.first_token_at = 0.0

    def extend(self, tokens: list[int], events: list[Event]) -> None:
        """Take tokens that the runtime chose, up to one that ends the sequence."""
        count = len(tokens)
        if (
            self.stops is None
            and count < self.max_tokens
            and len(self.tokens) + count < self.context
            and self.stop_ids.isdisjoint(tokens)
        ):  # none does, so the checks need not be made for each
            self.tokens += tokens
            self.max_tokens -= count
            self.usage.completion_tokens += count
            feed, request_id, index = self.decoder.feed, self.request_id, self.index
            for token in tokens:
                events.append(Token(request_id, index, token, feed(token)))
            return
        for token in tokens:
            self.push(token, None, events)
            if self.finished is not None:
                return

    def push(self, token: int, logprob: TokenLogprob | None, events: list[Event]) -> None:
        """Take a chosen token: append it, turn it into text, check whether it ends the sequence, report it."""
        self.tokens.append(token)
        if self.beginning is None or self.beginning.repeated != token:
            self.usage.completion_tokens += 1
            self.max_tokens -= 1
        if self.sampler is not None:
            self.sampler.note(token)
        if token in self.stop_ids:
            text = self.flush()
            self.finished = "stop"
        else:
            text = self.decoder.feed(token)
            if self.beginning is not None:
                text = self.beginning.cut(text)
            if self.stops is not None:
                text, stopped = self.stops.feed(text)
                if stopped:
                    self.finished = "stop"
            if self.finished is None:
                if self.matcher is not None and self.matcher.is_done():
                    self.finished = "stop"
                elif self.max_tokens <= 0 or len(self.tokens) >= self.context:
                    self.finished = "length"
                if self.finished is not None:
                    text += self.flush()
        events.append(Token(self.request_id, self.index, token, text, logprob))

    def masks(self, draft: list[int], vocab_size: int) -> list[Bits | None] | None:
        """The grammar's mask after the last token and after each drafted one; None if the host has to choose."""
        matcher = self.matcher
        if matcher is None:
            return [None] * (len(draft) + 1)
        if matcher.given:  # its log-probability is computed differently, by the host
            return None
        found: list[Bits | None] = []
        taken, allowed = 0, np.zeros(-(-vocab_size // 32) * 32, np.uint8)
        try:
            for token in (*draft, -1):
                matcher.mask(allowed[:vocab_size])
                if not allowed.any():
                    if not found:
                        return None
                    allowed[:] = 1  # the draft completes the answer: nothing is chosen after it
                found.append(np.packbits(allowed, bitorder="little").view(np.uint32))
                if token < 0 or not matcher.accept(token):
                    break
                taken += 1
        except FulgurError:  # the grammar cannot be followed any further
            return None
        finally:
            matcher.rollback(taken)
        return found if len(found) == len(draft) + 1 else None

    def flush(self) -> str:
        """All text that is still held back."""
        rest = self.decoder.flush()
        if self.beginning is not None:
            rest = self.beginning.cut(rest)
        if self.stops is not None:
            shown, stopped = self.stops.feed(rest)
            rest = shown if stopped else shown + self.stops.flush()
        return rest

    def finish(self, reason: FinishReason, now: float) -> Finished:
        """End this turn: settle its times and make the event that reports it."""
        self.finished = reason
        usage = self.usage
        if self.first_token_at:
            usage.decode_seconds += now - self.first_token_at
        elif self.admitted_at:
            usage.prefill_seconds += now - self.admitted_at
        self.admitted_at = self.first_token_at = 0.0
        message, self.message = self.message, None
        if reason == "length" and len(self.tokens) >= self.context:
            message = f"the context of {self.context} tokens is full"
        text = self.flush() if reason in ("cancelled", "error") else ""
        return Finished(self.request_id, self.index, reason, replace(usage), message, text)

    def note_first_token(self, now: float) -> None:
        if not self.first_token_at:
            self.usage.prefill_seconds += now - self.admitted_at
            self.first_token_at = now
