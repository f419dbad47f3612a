"""The engine: requests in, events out, one pass over the weights per step."""

from __future__ import annotations

from time import perf_counter

from fulgur.engine.ahead import StepsAhead
from fulgur.engine.background import BackgroundPrefill
from fulgur.engine.batch import Batch, BatchEntry
from fulgur.engine.cache import Cache
from fulgur.engine.decode import accept, plan_decode
from fulgur.engine.errors import ContextLengthExceeded, InvalidRequest
from fulgur.engine.events import Event, Started, SteerOutcome
from fulgur.engine.loop import DeviceLoop
from fulgur.engine.params import GenerateRequest, check_tokens
from fulgur.engine.prefill import plan_prefill
from fulgur.engine.request import Request, RequestMaker
from fulgur.engine.runtime import Runtime
from fulgur.engine.schedule import Scheduler
from fulgur.engine.sequence import Sequence
from fulgur.engine.speculate import StepCost
from fulgur.text.tokenizer import Tokenizer

KEPT = 256  # finished requests that are kept for a later steer; the oldest is dropped first


class Engine:
    """Runs any number of requests on one runtime. Not thread-safe: one caller submits and steps."""

    def __init__(
        self,
        runtime: Runtime,
        tokenizer: Tokenizer,
        *,
        max_sequences: int = 32,
        max_draft: int = 32,
        cost: StepCost | None = None,
    ) -> None:
        """Up to `max_sequences` run at once, the others wait. `max_draft` 0 turns speculation off."""
        self.runtime = runtime
        self.tokenizer = tokenizer
        self.context = min(runtime.max_context, runtime.kv_blocks * runtime.block_tokens)
        self.cost = cost or StepCost()
        self.cache = Cache(runtime)
        if runtime.states is not None:
            max_sequences = min(max_sequences, runtime.states.slots)
        self.scheduler = Scheduler(self.cache, self.context, max_sequences)
        self._batch = Batch(runtime, self.context, self.scheduler.tables)
        self._loop = DeviceLoop(runtime, self.cache, self.cost)
        self._ahead = StepsAhead(runtime, self.cache)
        self._background = BackgroundPrefill(runtime)
        self._maker = RequestMaker(
            tokenizer,
            runtime.vocab_size,
            self.context,
            self.cost,
            max_draft,
            device_samples=runtime.streaming is not None,
            own_draft=None if runtime.drafting is None else self.scheduler.own_draft,
        )
        self._requests: dict[str, Request] = {}
        self._resting: dict[str, None] = {}  # kept requests that have finished, oldest first
        self._events: list[Event] = []
        self._submitted = 0

    @property
    def busy(self) -> bool:
        """Whether a step has something to do or to report."""
        return bool(self.scheduler.running or self.scheduler.waiting or self._events)

    def submit(self, request: GenerateRequest, request_id: str | None = None) -> str:
        """Queue a request; raises at once for one that can never be served."""
        request.check(self.runtime.vocab_size)
        length = len(request.prompt) + sum(map(len, request.past))
        self._check_length(length, "prompt", 0 if request.prefill_only or request.past else 1)
        self._submitted += 1
        request_id = request_id or f"request-{self._submitted}"
        if request_id in self._requests:
            raise InvalidRequest(f"a request with the id {request_id} already exists")
        made = self._requests[request_id] = self._maker.make(request_id, request)
        if made.leader.finished is None:
            self.scheduler.waiting.append(made.leader)
        else:  # it resumes an answer that is already complete
            self._finish(made.leader, perf_counter())
        return request_id

    def step(self) -> list[Event]:
        """Plan the rows of this step, run them, take their results, report what happened.

        If one sequence decodes alone and the device has its own decode loop, wait for the next tokens of that loop
        instead. If several decode and the device can chain steps, queue the next step, then wait for the tokens of the
        one before it.
        """
        batch, scheduler, loop = self._batch, self.scheduler, self._loop
        if self._ahead.entries:
            return self._follow_steps()
        if loop.sequence is not None:
            if scheduler.waiting:
                self._settle(loop.leave(self._events))
            else:
                return self._follow_loop()
        batch.clear()
        plan_decode(scheduler, batch)
        if scheduler.waiting or len(batch.entries) < len(scheduler.running):
            plan_prefill(scheduler, batch, self._background, self._admitted)
        if batch.rows == batch.result_rows == len(scheduler.running) == 1 and not scheduler.waiting:
            sequence = batch.entries[0].sequence
            if sequence.computed + 1 == len(sequence.tokens) and not sequence.followers and loop.start(sequence):
                return self._follow_loop()
        if self._background.sequence is None and self._ahead.start(batch, scheduler):
            return self._follow_steps()
        self._background.advance(alone=not batch.rows)
        if batch.rows:
            start = perf_counter()
            best = batch.run()
            now = perf_counter()
            rows, decoding, by_host = batch.rows, batch.rows == batch.result_rows, batch.needs_logits
            for entry in batch.entries:
                self._take(entry, best, now)
            if decoding:  # sampling on the host is part of the cost of the rows
                choosing = perf_counter() - now if by_host else 0.0
                self.cost.observe(rows, self._background.seconds(now - start) + choosing)
        prefilled = self._background.settle()
        if prefilled is not None and prefilled.computed >= prefilled.commit_at:
            scheduler.commit(prefilled)
        events, self._events = self._events, []
        return events

    def cancel(self, request_id: str) -> bool:
        """End a request now; the next step reports it. False if the request is unknown or gone."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        self._resting.pop(request_id, None)
        now = perf_counter()
        if self._loop.sequence in request.sequences:
            self._loop.leave(None)
        for sequence in request.sequences:
            if sequence.finished is None:
                self._background.leave(sequence)
                self.scheduler.leave(sequence)
                self._events.append(sequence.finish("cancelled", now))
        return True

    def steer(self, request_id: str, tokens: list[int]) -> bool:
        """Append tokens to the live sequences of a request and continue from there; only these tokens are computed.

        `max_tokens` starts over. A kept request that has finished resumes. False if the request is unknown or gone.
        """
        request = self._requests.get(request_id)
        if request is None:
            return False
        targets = [s for s in request.sequences if s.finished is None] or request.sequences
        check_tokens(tokens, self.runtime.vocab_size, "steer")
        self._check_length(max(len(s.tokens) for s in targets) + len(tokens), "text with the steer", 1)
        if self._loop.sequence in targets:
            self._loop.leave(None)
        for sequence in targets:
            text = self._maker.steer(sequence, request.request, tokens)
            done = sequence.usage.completion_tokens
            self._events.append(SteerOutcome(request_id, sequence.index, len(tokens), done, text=text))
            if request_id in self._resting:
                self.scheduler.waiting.append(sequence)
        self._resting.pop(request_id, None)
        return True

    def close(self) -> None:
        """Drop all requests without reporting them, and close the runtime."""
        self._requests.clear()
        self._resting.clear()
        self._events.clear()
        if self._loop.sequence is not None:
            self._loop.leave(None)
        self.scheduler = Scheduler(self.cache, self.context, 1)
        self.runtime.close()

    def _check_length(self, length: int, what: str, spare: int) -> None:
        if length + spare > self.context:
            raise ContextLengthExceeded(
                f"the {what} has {length} tokens; the context holds {self.context} tokens, including the answer",
                hint="Shorten it, or start the engine with a larger KV cache if the model's context allows it.",
            )

    def _admitted(self, sequence: Sequence) -> None:
        if not sequence.admitted_at:
            sequence.admitted_at = perf_counter()
        if not sequence.started:
            sequence.started = True
            sequence.usage.cached_tokens = sequence.computed
            self._events.append(Started(sequence.request_id, len(sequence.tokens), sequence.computed))

    def _take(self, entry: BatchEntry, best: list[int], now: float) -> None:
        """Take the results of one sequence's rows."""
        sequence = entry.sequence
        if entry.first < 0:
            sequence.computed += entry.rows
            if sequence.prefill_only and sequence.computed == len(sequence.tokens):
                sequence.finished = "prefilled"
        else:
            accept(entry, self._batch, best, self._events)
            sequence.note_first_token(now)
        if sequence.computed >= sequence.commit_at:
            self.scheduler.commit(sequence)
        if sequence.followers and entry.first >= 0:
            self._fork(sequence, entry, best, now)
        if sequence.finished is not None:
            self._finish(sequence, now)

    def _follow_loop(self) -> list[Event]:
        """Take the next tokens of the sequence that runs in the device's loop."""
        sequence = self._loop.sequence
        assert sequence is not None
        self._loop.read(self._events)
        if self._loop.sequence is None:
            self._settle(sequence)
        events, self._events = self._events, []
        return events

    def _follow_steps(self) -> list[Event]:
        """Queue the next step if possible, then take the tokens of the one under way."""
        ahead, rows = self._ahead, len(self._ahead.entries)
        found = ahead.take(ahead.follow(self.scheduler))
        now, best = perf_counter(), [token for _, token in found]
        for row, (entry, _) in enumerate(found):
            entry.first = row
            self._take(entry, best, now)
        self.cost.observe(rows, ahead.seconds)
        events, self._events = self._events, []
        return events

    def _settle(self, sequence: Sequence) -> None:
        """After a sequence left the device's loop: share its full blocks, and close it if it has finished."""
        if sequence.computed >= sequence.commit_at:
            self.scheduler.commit(sequence)
        if sequence.finished is not None:
            self._finish(sequence, perf_counter())

    def _fork(self, leader: Sequence, entry: BatchEntry, best: list[int], now: float) -> None:
        """Fork the other continuations once the prompt is computed; each samples its first token from the same row."""
        followers, leader.followers = leader.followers, []
        for sequence in followers:
            sequence.started = True
            sequence.admitted_at = leader.admitted_at
            sequence.usage.cached_tokens = leader.usage.cached_tokens
            self.scheduler.fork(leader, sequence)
            accept(BatchEntry(sequence, 0, [], entry.first), self._batch, best, self._events)
            sequence.note_first_token(now)
            if sequence.finished is not None:
                self._finish(sequence, now)

    def _finish(self, sequence: Sequence, now: float) -> None:
        assert sequence.finished is not None
        self.scheduler.leave(sequence)
        self._events.append(sequence.finish(sequence.finished, now))
        request = self._requests.get(sequence.request_id)
        if request is None or not request.done:  # None: followers that ended with their first token have closed it
            return
        if not request.request.keep:
            del self._requests[request.id]
            return
        self._resting[request.id] = None
        if len(self._resting) > KEPT:
            oldest = next(iter(self._resting))
            del self._resting[oldest], self._requests[oldest]
