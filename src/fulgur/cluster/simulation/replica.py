"""One replica in the simulation: prompts one after another, answers together, and a cache that evicts the oldest."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from fulgur.cluster.simulation.service import ServiceTimes


@dataclass(eq=False)
class Job:
    """One turn: where it comes from, what it needs, and when it reached each stage."""

    session: str
    context: int  # tokens of the prompt
    output: int
    asked: float
    tier: str = "default"
    user: int = 0
    cached: int = 0
    expected: int = 0  # what the front thinks is cached
    sent: float = 0.0  # left the queue of the front
    first: float = 0.0  # first token
    written: float = 0.0  # tokens; after a death the next replica continues from here
    begun: float = 0.0  # the replica's tokens a sequence when it joined


@dataclass
class Replica:
    """`number`, `epoch` and `queued` are what routing looks at."""

    number: int
    service: ServiceTimes
    kv_tokens: int
    epoch: str = "0"
    queued: int = 0
    up: bool = True
    kept: OrderedDict[str, int] = field(default_factory=OrderedDict)  # tokens by session, oldest first
    waiting: deque[Job] = field(default_factory=deque)
    computing: Job | None = None
    answering: list[tuple[float, int, Job]] = field(default_factory=list)  # by the count at which each ends
    version: int = 0  # events planned before the last change are void
    _done: float = 0.0  # seconds of work done on the current prompt
    _count: float = 0.0  # tokens of a sequence that had been here from the start
    _context: float = 0.0  # of all that answer
    _at: float = 0.0
    _order: int = 0
    _held: int = 0

    def submit(self, job: Job, now: float) -> None:
        self.advance(now)
        self.waiting.append(job)
        self.queued += job.context - job.expected
        self._begin()

    def advance(self, now: float) -> None:
        """Advance prompt and answers to `now`; nothing ends in between."""
        seconds, self._at = now - self._at, now
        slower = self.computing is not None and bool(self.answering)
        if self.computing is not None:
            self._done += seconds / (self.service.beside.prefill if slower else 1.0)
        if self.answering:
            self._count += seconds / self._step(slower)

    def next_end(self) -> float | None:
        """When the next prompt or answer ends, if nothing else happens."""
        slower = self.computing is not None and bool(self.answering)
        ends = []
        if self.computing is not None:
            left = self._prefill(self.computing) - self._done
            ends.append(left * (self.service.beside.prefill if slower else 1.0))
        if self.answering:
            ends.append((self.answering[0][0] - self._count) * self._step(slower))
        return self._at + max(min(ends), 0.0) if ends else None

    def end(self, now: float) -> tuple[Job | None, Job | None]:
        """What has ended by now: (prompt, answer)."""
        self.advance(now)
        prompt = answer = None
        if self.computing is not None and self._done >= self._prefill(self.computing) - 1e-9:
            prompt, self.computing = self.computing, None
            self.queued -= prompt.context - prompt.expected
            self._order += 1
            prompt.begun = self._count - prompt.written
            heapq.heappush(self.answering, (prompt.begun + prompt.output, self._order, prompt))
            self._context += prompt.context
        elif self.answering and self._count >= self.answering[0][0] - 1e-6:
            answer = heapq.heappop(self.answering)[2]
            answer.written = answer.output
            self._context -= answer.context
            self._keep(answer.session, answer.context + answer.output)
        self._begin()
        return prompt, answer

    def die(self, now: float) -> list[Job]:
        """Lose everything but what the fronts know: the jobs, with the tokens that were written."""
        self.advance(now)
        jobs = [job for _, _, job in self.answering] + list(self.waiting)
        for _, _, job in self.answering:
            job.written = min(max(self._count - job.begun, 0.0), job.output - 1)
        if self.computing is not None:
            jobs.append(self.computing)
        self.kept.clear()
        self.waiting.clear()
        self.answering.clear()
        self.computing = None
        self.up, self.queued, self._context, self._held = False, 0, 0.0, 0
        self.epoch = str(int(self.epoch) + 1)
        self.version += 1
        return jobs

    def _begin(self) -> None:
        self.version += 1
        if self.computing is None and self.waiting and len(self.answering) < self.service.sequences:
            job = self.computing = self.waiting.popleft()
            job.cached = min(self.kept.get(job.session, 0), job.context - 1)
            self._done = 0.0
            self._keep(job.session, job.context)

    def _keep(self, session: str, tokens: int) -> None:
        self._held += tokens - self.kept.pop(session, 0)
        self.kept[session] = tokens
        while self._held > self.kv_tokens and len(self.kept) > 1:
            self._held -= self.kept.popitem(last=False)[1]

    def _prefill(self, job: Job) -> float:
        return self.service.prefill_s(job.cached, job.context + job.written - job.cached)

    def _step(self, slower: bool) -> float:
        seconds = self.service.step_s(len(self.answering), self._context)
        return seconds * self.service.beside.decode if slower else seconds
