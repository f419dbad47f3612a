"""A fair queue in front of a number of slots. It has no clock and no task; a pool drives it.

Tiers share the slots by weight, and keys share a tier by tokens (virtual token counters): every answer is charged to
its tier and its key, and the one charged least is next. A key or tier that returns after a pause starts no lower than
the lowest charge of those present, so that nobody saves up turns. The cost of an answer is known only at its end; until
then it is charged the mean.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

FLEX = "flex"  # runs when no other tier waits, and makes room when one does
_MEAN_OF = 16  # the mean cost is over about this many answers


@dataclass(frozen=True)
class TierShare:
    """A tier's claim on the slots."""

    weight: float = 1.0
    most: int = 0  # slots at once; 0: all
    reserved: int = 0  # slots that no other tier takes


@dataclass(eq=False)
class Ticket:
    """A place in the queue, then a slot."""

    owner: str
    tier: str
    running: bool = False
    charged: float = 0.0
    id: str = ""  # where several fronts share a queue


class Standing(msgspec.Struct, array_like=True):
    """The state of a queue, to be written down."""

    tickets: list[Ticket]
    by_tier: dict[str, float]  # what each was charged
    by_key: dict[str, dict[str, float]]
    mean: float


@dataclass
class _Counters:
    """What each tier, or key, that is present was charged."""

    charged: dict[str, float] = field(default_factory=dict)
    here: Counter[str] = field(default_factory=Counter)

    def join(self, name: str) -> None:
        if not self.here[name]:
            least = min((self.charged[other] for other in self.here if self.here[other]), default=0.0)
            self.charged[name] = max(self.charged.get(name, 0.0), least)
        self.here[name] += 1

    def leave(self, name: str) -> None:
        self.here[name] -= 1
        if not self.here[name]:
            del self.here[name]
        if not self.here:
            self.charged.clear()  # nobody is left to compare with


class FairQueue:
    """With `slots` 0 everybody gets one at once."""

    def __init__(self, slots: int, tiers: Mapping[str, TierShare]) -> None:
        self.slots = slots
        self.tiers = tiers
        self.running: list[Ticket] = []
        self._waiting: dict[str, dict[str, deque[Ticket]]] = {tier: {} for tier in tiers}
        self._by_tier = _Counters()
        self._by_key = {tier: _Counters() for tier in tiers}
        self._mean = 1.0

    def __len__(self) -> int:
        """How many tickets wait."""
        return sum(len(queue) for keys in self._waiting.values() for queue in keys.values())

    def add(self, ticket: Ticket) -> None:
        self._by_tier.join(ticket.tier)
        self._by_key[ticket.tier].join(ticket.owner)
        self._waiting[ticket.tier].setdefault(ticket.owner, deque()).append(ticket)

    def tickets(self) -> list[Ticket]:
        """Those that run and those that wait."""
        return [*self.running, *(each for keys in self._waiting.values() for line in keys.values() for each in line)]

    def put_back(self, ticket: Ticket) -> None:
        """Restore a ticket as it was, waiting or running."""
        self.add(ticket)
        if ticket.running:
            self._waiting[ticket.tier][ticket.owner].remove(ticket)
            if not self._waiting[ticket.tier][ticket.owner]:
                del self._waiting[ticket.tier][ticket.owner]
            self.running.append(ticket)

    def standing(self) -> Standing:
        by_key = {tier: counters.charged for tier, counters in self._by_key.items() if counters.charged}
        return Standing(self.tickets(), self._by_tier.charged, by_key, self._mean)

    def restore(self, standing: Standing) -> None:
        """Load a state into an empty queue."""
        for ticket in standing.tickets:
            if ticket.tier in self.tiers:
                self.put_back(ticket)
        self._mean = standing.mean
        self._by_tier.charged.update(standing.by_tier)
        for tier, charged in standing.by_key.items():
            if tier in self._by_key:
                self._by_key[tier].charged.update(charged)

    def next(self) -> Ticket | None:
        """Give a slot to the next ticket that may have one."""
        tier = self._next_tier(self._free())
        if tier is None:
            return None
        ticket = self._pop(tier)
        ticket.running = True
        self.running.append(ticket)
        return ticket

    def done(self, ticket: Ticket, cost: float) -> None:
        """Free the slot of an answer that has ended, and charge what it cost."""
        self.running.remove(ticket)
        self._mean += (cost - self._mean) / _MEAN_OF
        self._charge(ticket.tier, ticket.owner, cost - ticket.charged)
        self._leave(ticket)

    def withdraw(self, ticket: Ticket) -> None:
        """Remove a ticket that no longer wants to wait."""
        queue = self._waiting[ticket.tier][ticket.owner]
        queue.remove(ticket)
        if not queue:
            del self._waiting[ticket.tier][ticket.owner]
        self._leave(ticket)

    def victim(self) -> Ticket | None:
        """The youngest flex answer, when another tier waits and would get its slot."""
        flex = [ticket for ticket in self.running if ticket.tier == FLEX]
        if not flex or self._next_tier(self._free()) not in (None, FLEX):
            return None
        tier = self._next_tier(self._free(flex[-1]))
        return flex[-1] if tier not in (None, FLEX) else None

    def order(self) -> list[Ticket]:
        """The waiting tickets in the order they would be served if all answers cost the same."""
        copy = FairQueue(0, self.tiers)
        copy._mean = self._mean
        copy._by_tier = _Counters(dict(self._by_tier.charged), Counter(self._by_tier.here))
        for tier, counters in self._by_key.items():
            copy._by_key[tier] = _Counters(dict(counters.charged), Counter(counters.here))
            copy._waiting[tier] = {owner: deque(queue) for owner, queue in self._waiting[tier].items()}
        found = []
        while (tier_name := copy._next_tier(dict.fromkeys(self.tiers, True))) is not None:
            ticket = copy._pop(tier_name, real=False)
            found.append(ticket)
        return found

    def _free(self, without: Ticket | None = None) -> dict[str, bool]:
        """For each tier, whether there is a slot that it may take, as if `without` were gone."""
        if not self.slots:
            return dict.fromkeys(self.tiers, True)
        taken = Counter(ticket.tier for ticket in self.running if ticket is not without)
        free = self.slots - taken.total()
        kept = {tier: max(0, share.reserved - taken[tier]) for tier, share in self.tiers.items()}
        return {
            tier: free > sum(kept.values()) - kept[tier] and (not share.most or taken[tier] < share.most)
            for tier, share in self.tiers.items()
        }

    def _next_tier(self, free: Mapping[str, bool]) -> str | None:
        able = [tier for tier, keys in self._waiting.items() if keys and free[tier]]
        return min(able, key=lambda tier: (tier == FLEX, self._by_tier.charged[tier]), default=None)

    def _pop(self, tier: str, *, real: bool = True) -> Ticket:
        keys, counters = self._waiting[tier], self._by_key[tier]
        owner = min(keys, key=lambda name: counters.charged[name])
        ticket = keys[owner].popleft()
        if not keys[owner]:
            del keys[owner]
        if real:
            ticket.charged = self._mean
        self._charge(tier, owner, self._mean)
        return ticket

    def _charge(self, tier: str, owner: str, cost: float) -> None:
        self._by_tier.charged[tier] += cost / self.tiers[tier].weight
        self._by_key[tier].charged[owner] += cost

    def _leave(self, ticket: Ticket) -> None:
        self._by_key[ticket.tier].leave(ticket.owner)
        self._by_tier.leave(ticket.tier)
