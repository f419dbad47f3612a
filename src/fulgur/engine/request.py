"""A submitted request: its sequences, and how they are made."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

from fulgur.engine.begin import Beginning
from fulgur.engine.decode import take
from fulgur.engine.errors import InvalidRequest
from fulgur.engine.events import Event
from fulgur.engine.gumbel import mix
from fulgur.engine.params import GenerateRequest
from fulgur.engine.runtime import Matcher
from fulgur.engine.sample import Sampler, Scratch
from fulgur.engine.sequence import Sequence
from fulgur.engine.speculate import Speculator, StepCost
from fulgur.engine.stop import StopStrings
from fulgur.text.stream import StreamDecoder
from fulgur.text.tokenizer import Tokenizer


class Request:
    """One prompt and its continuations. The first leads: it computes the prompt, the others fork from it."""

    __slots__ = ("id", "request", "sequences")

    def __init__(self, request_id: str, request: GenerateRequest, sequences: list[Sequence]) -> None:
        self.id = request_id
        self.request = request
        self.sequences = sequences

    @property
    def leader(self) -> Sequence:
        return self.sequences[0]

    @property
    def done(self) -> bool:
        return all(sequence.finished is not None for sequence in self.sequences)


class RequestMaker:
    """Builds requests for one model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        context: int,
        cost: StepCost,
        max_draft: int,
        *,
        device_samples: bool = False,
        own_draft: Callable[[Sequence, int], list[int]] | None = None,
    ) -> None:
        """`device_samples`: the runtime can sample by itself, so the host has to sample in the same way. `own_draft`:
        drafts with the model's own head, if it has one."""
        self._tokenizer = tokenizer
        self._scratch = Scratch(vocab_size, device_samples=device_samples)
        self._context = context
        self._cost = cost
        self._max_draft = max_draft
        self._own_draft = own_draft

    def make(self, request_id: str, request: GenerateRequest) -> Request:
        params = request.params
        seed = secrets.randbits(63) if params.seed is None else params.seed
        stop_ids = frozenset(params.stop_tokens)
        if not params.ignore_eos:
            stop_ids |= self._tokenizer.eos_ids
        sequences = []
        for index in range(1 if request.prefill_only else request.n):
            sequence = Sequence(request_id, index, request, self._context)
            sequence.stop_ids = stop_ids
            sequence.stops = StopStrings(params.stop) if params.stop else None
            if params.needs_logits:
                sequence.sampler = Sampler(params, mix(seed) + index, self._scratch, request.prompt)
            if request.speculate and self._max_draft and not request.prefill_only:
                source = request.draft_source
                own = None if self._own_draft is None else partial(self._own_draft, sequence)
                sequence.speculator = Speculator(sequence.tokens, source, self._cost, self._max_draft, own)
            self._begin_answer(sequence, request)
            sequences.append(sequence)
        self._take_up(sequences[0], request)
        sequences[0].followers = sequences[1:]
        return Request(request_id, request, sequences)

    def _take_up(self, sequence: Sequence, request: GenerateRequest) -> None:
        """Bring a new sequence to where another engine left it, as if it had generated these tokens itself."""
        reported: list[Event] = []  # the other engine has reported them already
        for place, tokens in enumerate(request.past):
            if place % 2:
                self.steer(sequence, request, tokens)
            else:
                for token in tokens:
                    take(sequence, token, None, reported)

    def steer(self, sequence: Sequence, request: GenerateRequest, tokens: list[int]) -> str:
        """Append given tokens; the answer and its limit start over. Returns the text that was still held back."""
        held = sequence.flush() if sequence.finished is None else ""
        sequence.finished = None
        sequence.max_tokens = request.params.max_tokens
        sequence.tokens.extend(tokens)
        if sequence.sampler is not None:
            sequence.sampler.note_prompt(tokens)
        if sequence.speculator is not None:
            sequence.speculator.restart()
        self._begin_answer(sequence, request)
        return held

    def _begin_answer(self, sequence: Sequence, request: GenerateRequest) -> None:
        """Reset what belongs to one answer, also after a steer: the decoder and the grammar."""
        sequence.decoder = StreamDecoder(self._tokenizer, keep=request.visible_tokens, continuation=True)
        if request.params.begins and not (sequence.started or sequence.usage.completion_tokens):
            sequence.beginning = sequence.matcher = Beginning(request.params.begins, self._tokenizer)
        else:
            sequence.beginning, sequence.matcher = None, self._matcher(request)

    def _matcher(self, request: GenerateRequest) -> Matcher | None:
        if request.params.grammar is None or request.prefill_only:
            return None
        from fulgur.text.grammar import Grammar, GrammarMatcher, LimitTooLow

        try:
            return GrammarMatcher(Grammar.unchecked(request.params.grammar), self._tokenizer, request.params.max_tokens)
        except LimitTooLow as error:
            raise InvalidRequest(error.message, hint=error.hint) from None
