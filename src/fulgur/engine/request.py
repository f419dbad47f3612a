"""A submitted request: its sequences, and how they are made."""

from __future__ import annotations

import secrets

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
        draws: bool = False,
    ) -> None:
        """`draws`: the runtime samples with a temperature by itself, so the host does it in the same way."""
        self._tokenizer = tokenizer
        self._scratch = Scratch(vocab_size, draws=draws)
        self._context = context
        self._cost = cost
        self._max_draft = max_draft

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
                sequence.speculator = Speculator(sequence.tokens, source, self._cost, self._max_draft)
            self._begin_answer(sequence, request)
            sequences.append(sequence)
        sequences[0].followers = sequences[1:]
        return Request(request_id, request, sequences)

    def steer(self, sequence: Sequence, request: GenerateRequest, tokens: list[int]) -> str:
        """Append given tokens; the answer begins anew after them. Returns the text that was still held back."""
        held = sequence.flush() if sequence.finished is None else ""
        if sequence.finished is not None:
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
        """What starts anew with an answer, also after a steer: the decoder and the grammar."""
        sequence.decoder = StreamDecoder(self._tokenizer, keep=request.visible_tokens, continuation=True)
        sequence.matcher = self._matcher(request)

    def _matcher(self, request: GenerateRequest) -> Matcher | None:
        if request.params.grammar is None or request.prefill_only:
            return None
        from fulgur.text.grammar import Grammar, GrammarMatcher

        return GrammarMatcher(Grammar.unchecked(request.params.grammar), self._tokenizer)
