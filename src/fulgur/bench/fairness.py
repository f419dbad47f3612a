"""`fulgur bench fairness`: how long light users wait beside one who fills the pool: first in first out, and in our
queue.

A simulation with the server's own scheduler and simulated time, so the figures are the same on every machine. One key
keeps 80 lanes busy in a pool of 40 slots; 20 light keys send requests now and then. Requests, their times and their
lengths are the same in both runs; the scheduler learns what an answer cost when it has ended.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
from dataclasses import dataclass, field
from itertools import count

from fulgur.bench.report import Report
from fulgur.server.fair_queue import FairQueue, Ticket, TierShare

SLOTS, LANES, LIGHT = 40, 80, 20
PAUSE_S = 60.0  # between two requests of a light key, on average
TOKENS_A_SECOND = 50.0
HEAVY = "heavy"


@dataclass
class Result:
    waits: dict[str, list[float]] = field(default_factory=dict)  # by key, seconds
    work: dict[str, float] = field(default_factory=dict)  # by key, tokens

    def light_wait(self) -> float:
        return statistics.median(wait for key, waits in self.waits.items() if key != HEAVY for wait in waits)


def simulate(*, fair: bool, seconds: float, seed: int) -> Result:
    """Simulate the traffic. First in first out is the same queue with one owner for everybody."""
    lengths, arrivals = random.Random(seed), random.Random(seed + 1)
    queue = FairQueue(SLOTS, {"default": TierShare()})
    result = Result()
    number = count()
    events: list[tuple[float, int, str, Ticket | None, float]] = []  # when, tie-break, key, ticket that ends, tokens
    for key in (f"light{index}" for index in range(LIGHT)):
        at = arrivals.expovariate(1 / PAUSE_S)
        while at < seconds:
            heapq.heappush(events, (at, next(number), key, None, 0.0))
            at += arrivals.expovariate(1 / PAUSE_S)
    for _ in range(LANES):
        heapq.heappush(events, (0.0, next(number), HEAVY, None, 0.0))
    asked: dict[Ticket, tuple[str, float]] = {}
    while events:
        now, _, key, ended, tokens = heapq.heappop(events)
        if now > seconds:
            break
        if ended is not None:
            queue.done(ended, tokens)
            result.work[key] = result.work.get(key, 0.0) + tokens
        if ended is None or key == HEAVY:  # a lane sends its next request as soon as it has its answer
            ticket = Ticket(key if fair else "all", "default")
            asked[ticket] = key, now
            queue.add(ticket)
        while (started := queue.next()) is not None:
            name, since = asked.pop(started)
            result.waits.setdefault(name, []).append(now - since)
            long = lengths.lognormvariate(6.0, 0.8)
            heapq.heappush(events, (now + long / TOKENS_A_SECOND, next(number), name, started, long))
    return result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=3600.0, help="simulated (default %(default)g)")
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> Report:
    fifo = simulate(fair=False, seconds=args.seconds, seed=args.seed)
    fair = simulate(fair=True, seconds=args.seconds, seed=args.seed)
    report = Report(f"{LANES} lanes of one key beside {LIGHT} light keys, {SLOTS} slots, simulated")
    report.add("fairness.light_wait_fifo", fifo.light_wait(), "s")
    report.add("fairness.light_wait", fair.light_wait(), "s")
    report.add("fairness.light_wait_ratio", fair.light_wait() / fifo.light_wait(), "", bar=0.05, at_most=True)
    report.add("fairness.heavy_work", fair.work[HEAVY] / fifo.work[HEAVY], "", bar=0.95)
    report.add("fairness.work", sum(fair.work.values()) / sum(fifo.work.values()), "", bar=0.95)
    return report
