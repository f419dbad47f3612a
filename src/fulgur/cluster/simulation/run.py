"""The simulation itself: one heap of events, with the server's own queue and our own routing."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import Literal

from fulgur.cluster.routing import Pin, Pins, choose, home
from fulgur.cluster.simulation.replica import Job, Replica
from fulgur.cluster.simulation.service import ServiceTimes
from fulgur.cluster.simulation.sessions import ACTIVE, Shape, Turn, typical
from fulgur.server.fair_queue import FairQueue, Ticket, TierShare

Routing = Literal["random", "least", "hash", "pinned"]
ROUTINGS: tuple[Routing, ...] = ("random", "least", "hash", "pinned")
WEIGHTS = {"flex": 1.0, "default": 4.0, "priority": 16.0}
_WARM = 0.25  # of the time is not counted: caches are cold at first


@dataclass(frozen=True)
class Setup:
    """`deaths` an hour of all replicas together; `tiers`: a tenth of the users in flex, a tenth in priority."""

    service: ServiceTimes
    users: int
    replicas: int
    routing: Routing = "pinned"
    kv_tokens: int = 0  # of each replica; 0: as the service times say
    slots: int = 0  # answers at once on each replica; 0: as many as the engine takes
    tiers: bool = False
    deaths: float = 0.0
    seconds: float = 600.0
    seed: int = 0
    recorded: tuple[tuple[Turn, ...], ...] = ()


@dataclass
class Outcome:
    """The results of the turns after the warm-up."""

    ttft: dict[str, list[float]] = field(default_factory=dict)  # by tier, from the request to its first token
    wait: list[float] = field(default_factory=list)  # for a slot
    cached: int = 0
    prompt: int = 0  # tokens that the turn before had left, or would have
    turns: int = 0
    tokens: float = 0.0
    taken_up: int = 0
    seconds: float = 0.0

    @property
    def hit(self) -> float:
        return self.cached / self.prompt if self.prompt else 0.0

    def quantile(self, share: float, tier: str | None = None) -> float:
        values = sorted(value for name, of in self.ttft.items() if tier in (None, name) for value in of)
        return values[min(int(share * len(values)), len(values) - 1)] if values else 0.0


def simulate(setup: Setup) -> Outcome:
    return _Simulation(setup).run()


class _Simulation:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        service = setup.service
        kv = setup.kv_tokens or service.kv_tokens
        self.replicas = [Replica(number, service, kv) for number in range(setup.replicas)]
        self.pins = Pins()
        tiers = (
            {name: TierShare(weight) for name, weight in WEIGHTS.items()} if setup.tiers else {"default": TierShare()}
        )
        self.queue = FairQueue((setup.slots or service.sequences) * setup.replicas, tiers)
        self.tickets: dict[Job, Ticket] = {}
        self.asked: dict[Ticket, Job] = {}
        self.homeless: list[Job] = []
        self.outcome = Outcome(seconds=setup.seconds * (1 - _WARM))
        self.events: list[tuple[float, int, str, int, int]] = []  # when, tie, what, who, version
        self.number = count()
        self.dice = random.Random(setup.seed)
        self.held: dict[str, int] = {}  # tokens of a session after its last turn
        self.compacted: Counter[int] = Counter()  # by user
        self.turns: list[Iterator[tuple[int, Turn]]] = []
        self.next: list[tuple[int, Turn]] = []

    def run(self) -> Outcome:
        setup = self.setup
        for user in range(max(1, round(setup.users * ACTIVE))):
            self.turns.append(self._turns(user))
            self.next.append(next(self.turns[-1]))
            self._at(self.dice.uniform(0, 30), "ask", user)
        if setup.deaths:
            self._at(self.dice.expovariate(setup.deaths / 3600), "die", 0)
        while self.events:
            now, _, what, who, version = heapq.heappop(self.events)
            if now > setup.seconds:
                break
            if what == "ask":
                self._ask(who, now)
            elif what == "end":
                if self.replicas[who].version == version:
                    self._end(self.replicas[who], now)
            elif what == "die":
                self._die(now)
            else:
                self._back(self.replicas[who], now)
        return self.outcome

    def _turns(self, user: int) -> Iterator[tuple[int, Turn]]:
        if self.setup.recorded:
            return ((0, turn) for turn in cycle(self.setup.recorded[user % len(self.setup.recorded)]))
        return typical(self.setup.seed * 1_000_003 + user)

    def _at(self, when: float, what: str, who: int, version: int = 0) -> None:
        heapq.heappush(self.events, (when, next(self.number), what, who, version))

    def _ask(self, user: int, now: float) -> None:
        number, turn = self.next[user]
        session = f"{user}.{number}.{self.compacted[user]}"
        before = self.held.get(session, 0)
        most = min(Shape().most, self.setup.service.context * 3 // 4)
        summary = 0
        if before + turn.input + turn.output > most:  # after a summary everything is new to every cache
            self.held.pop(session, None)
            self.compacted[user] += 1
            session, before, summary = f"{user}.{number}.{self.compacted[user]}", 0, most // 5
        context = min(before + summary + turn.input, most)
        tier = {0: "flex", 1: "priority"}.get(user % 10, "default") if self.setup.tiers else "default"
        job = Job(session, context, turn.output, now, tier, user)
        ticket = Ticket(str(user), tier)
        self.tickets[job], self.asked[ticket] = ticket, job
        if now > _WARM * self.setup.seconds:
            self.outcome.prompt += before
        self.queue.add(ticket)
        self._serve(now)

    def _serve(self, now: float) -> None:
        while (ticket := self.queue.next()) is not None:
            job = self.asked.pop(ticket)
            job.sent = now
            self._route(job, now)

    def _route(self, job: Job, now: float) -> None:
        up = [replica for replica in self.replicas if replica.up]
        if not up:
            self.homeless.append(job)
            return
        key, routing = job.session, self.setup.routing
        if routing == "random":
            replica = self.dice.choice(up)
        elif routing == "least":
            replica = min(up, key=lambda one: (one.queued, len(one.answering), one.number))
        elif routing == "hash":
            replica = home(key, up)
        else:
            replica, job.expected = choose(key, job.context, up, self.pins.get(key))
            self.pins.put(key, Pin(replica.number, replica.epoch, job.context + job.output))
        replica.submit(job, now)
        self._plan(replica)

    def _plan(self, replica: Replica) -> None:
        when = replica.next_end()
        if when is not None:
            self._at(when, "end", replica.number, replica.version)

    def _end(self, replica: Replica, now: float) -> None:
        prompt, answer = replica.end(now)
        if prompt is not None and not prompt.first:
            prompt.first = now
            if prompt.asked > _WARM * self.setup.seconds:
                self.outcome.ttft.setdefault(prompt.tier, []).append(now - prompt.asked)
                self.outcome.wait.append(prompt.sent - prompt.asked)
                self.outcome.cached += min(prompt.cached, self.held.get(prompt.session, 0))
        self._plan(replica)
        if answer is not None:
            self._answered(answer, now)

    def _answered(self, job: Job, now: float) -> None:
        if now > _WARM * self.setup.seconds:
            self.outcome.turns += 1
            self.outcome.tokens += job.output
        self.held[job.session] = job.context + job.output
        self.queue.done(self.tickets.pop(job), job.context - job.cached + 3 * job.output)
        before = self.next[job.user][0]
        self.next[job.user] = number, turn = next(self.turns[job.user])
        if number != before:
            self.held.pop(job.session, None)
        self._at(now + turn.pause_s, "ask", job.user)
        self._serve(now)

    def _die(self, now: float) -> None:
        up = [replica for replica in self.replicas if replica.up]
        if up:
            replica = self.dice.choice(up)
            lost = replica.die(now)
            self.outcome.taken_up += len(lost)
            self._at(now + self.setup.service.start_s, "back", replica.number)
            for job in lost:
                self._route(job, now)
        self._at(now + self.dice.expovariate(self.setup.deaths / 3600), "die", 0)

    def _back(self, replica: Replica, now: float) -> None:
        replica.advance(now)
        replica.up = True
        waiting, self.homeless = self.homeless, []
        for job in waiting:
            self._route(job, now)
