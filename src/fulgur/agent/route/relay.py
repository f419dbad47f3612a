"""`model = "auto"`: a fast and a deep model, and a turn that may pass from one to the other."""

from __future__ import annotations

import time
from collections.abc import Callable

from fulgur.agent.route.drift import Drift
from fulgur.agent.route.models import ModelLink
from fulgur.agent.route.router import route
from fulgur.agent.route.rules import OTHER, Choice, Side, Task, decide, model_of
from fulgur.config.settings import Settings
from fulgur.protocol.agent import AgentEvent, RouteCost, Routed, UsageReported

AUTO = "auto"


class HandOver(Exception):
    """Raised when the current model should hand the turn to the other one; the message says why."""


class Pair:
    """Both models, each connected on first use."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._links: dict[Side, ModelLink] = {}
        self._preferred: Side | None = None
        for side in OTHER:
            model_of(settings, side)  # raises at once if one is not configured

    async def link(self, side: Side) -> ModelLink:
        """Return the link to one of them. Both share a connection if they have the same provider."""
        if side not in self._links:
            settings = self._settings.choosing(model_of(self._settings, side))
            other = self._links.get(OTHER[side])
            if other is not None and other.settings.provider == settings.provider and not other.connection.closed:
                self._links[side] = await other.beside(settings)
            else:
                self._links[side] = await ModelLink.open(settings)
        return self._links[side]

    def prefer_another(self) -> str:
        """Overrule the rules for the next prompt: cycle through the deep model, the fast one and the rules. Return the
        choice in words."""
        preferences: dict[Side | None, Side | None] = {None: "deep", "deep": "fast", "fast": None}
        self._preferred = preferences[self._preferred]
        if self._preferred is None:
            return "the rules decide about the next turn"
        return f"the next turn is for the {self._preferred} model, {model_of(self._settings, self._preferred)}"

    def decide(self, text: str, context_used: int) -> Choice:
        """Choose which of them works on a prompt."""
        if self._preferred is not None:
            side, self._preferred = self._preferred, None
            return Choice(side, model_of(self._settings, side), "you chose it", "person")
        fast = self._links.get("fast")
        percent = 0.0
        if fast is not None and route(fast.info, self._settings)[0] != "edit":  # an edit starts from the file alone
            percent = 100 * context_used / fast.info.context
        return decide(Task(text, percent, fast.info.abilities if fast is not None else None), self._settings)

    async def close(self) -> None:
        """Close both."""
        for link in self._links.values():
            await link.connection.close()


class Relay:
    """Which model works on one turn: watches for drift, may hand over once on its own, and counts each model's cost."""

    def __init__(self, pair: Pair, decision: Choice, settings: Settings, emit: Callable[[AgentEvent], None]) -> None:
        self._pair = pair
        self._settings = settings
        self._emit = emit
        self.decision = decision
        self._drift = Drift(settings)
        self._costs: dict[Side, RouteCost] = {}
        self._since = time.monotonic()
        self._turn = 0

    def watch(self, event: AgentEvent) -> None:
        """Forward an event after counting its usage and watching for drift."""
        if isinstance(event, UsageReported):
            self._count(event.model, event.input_tokens, event.output_tokens, event.cost)
        if self.may_escalate:
            self._drift.watch(event)
        self._emit(event)

    @property
    def may_escalate(self) -> bool:
        """Whether the turn may still pass to the deep model on its own."""
        return self.decision.side == "fast"

    def drift(self) -> str:
        """Why the turn should pass to the deep model now; empty while all is well."""
        return self._drift.why if self.may_escalate else ""

    def begin(self, turn: int, model: str) -> None:
        """Announce who works on the turn, and why."""
        self._turn, self._since = turn, time.monotonic()
        decision = self.decision
        why = f"{decision.why} ({decision.by})" if decision.by else decision.why
        other = model_of(self._settings, OTHER[decision.side])
        self._emit(Routed(turn=turn, side=decision.side, model=model, why=why, rule=decision.rule, other=other))

    async def pass_on(self, why: str, *, rule: str) -> ModelLink:
        """Hand the turn to the other model; return its link."""
        self._stop_clock()
        side = OTHER[self.decision.side]
        link = await self._pair.link(side)
        self.decision = Choice(side, model_of(self._settings, side), why, rule)
        self.begin(self._turn, link.info.name)
        return link

    def costs(self) -> tuple[RouteCost, ...]:
        """What each model that worked on the turn cost."""
        self._stop_clock()
        return tuple(self._costs.values())

    def _stop_clock(self) -> None:
        now = time.monotonic()
        self._count("", 0, 0, None, now - self._since)
        self._since = now

    def _count(self, model: str, read: int, written: int, cost: float | None, seconds: float = 0.0) -> None:
        side = self.decision.side
        old = self._costs.get(side) or RouteCost(side=side, model=self.decision.model)
        total = old.cost if cost is None else (old.cost or 0.0) + cost
        self._costs[side] = RouteCost(
            side=side,
            model=model or old.model,
            seconds=round(old.seconds + seconds, 3),
            input_tokens=old.input_tokens + read,
            output_tokens=old.output_tokens + written,
            cost=total,
        )
