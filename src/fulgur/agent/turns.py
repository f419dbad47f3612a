"""Prompts become turns, one at a time: typed text starts a turn, redirects it, waits for its end, or stops it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from fulgur.agent.broadcast import Broadcast
from fulgur.agent.exclusive_task import ExclusiveTask
from fulgur.agent.guidance import Guidance
from fulgur.agent.loop.approvals import Answered, Approvals
from fulgur.agent.loop.context import Progress, TurnContext
from fulgur.agent.loop.planned import Planned
from fulgur.agent.loop.turn import Turn
from fulgur.agent.route.answering import Answering
from fulgur.agent.route.models import ModelLink
from fulgur.agent.route.relay import Relay
from fulgur.agent.route.router import route
from fulgur.agent.session.changes import Changes
from fulgur.agent.session.state import SessionState
from fulgur.agent.workbench import Workbench
from fulgur.config.settings import Settings
from fulgur.errors import FulgurError
from fulgur.protocol import agent as events
from fulgur.protocol.agent import AgentEvent, Decision, Warned
from fulgur.tools.base import Tool
from fulgur.workspace.files import Change


class Turns(ABC):
    """The turns of one session; `Agent` decides which session, settings and tools.

    `submit`, `steer`, `queue`, `stop` and `approve` return at once and never block a key; their effects arrive as
    events.
    """

    state: SessionState
    bench: Workbench
    changes: Changes
    guidance: Guidance

    def __init__(self, settings: Settings, answering: Answering, *, interactive: bool) -> None:
        self.settings = settings
        self._answering = answering
        self._interactive = interactive
        self._broadcast = Broadcast()
        self._busy = ExclusiveTask(self._begin_queued)
        self._turn: Turn | None = None
        self._stop_first = False  # stopped before its turn had begun
        self._format: dict[str, Any] | None = None
        self._progress = Progress()

    @abstractmethod
    def _tools(self) -> list[Tool[Any]]:
        """What the model may call."""

    @abstractmethod
    async def _follow_config(self) -> None:
        """Read the config files again if they changed."""

    def submit(self, text: str) -> None:
        """Start a turn; while one runs this is `steer`. Empty text starts what a stop left queued."""
        if text.strip():
            self.steer(text)
        elif not self.running:
            self._begin_queued()

    def steer(self, text: str) -> None:
        """Redirect the running answer at the next token; what was said stays. Without a running turn this is
        `submit`."""
        if not self.running:
            self._begin(text)
        elif self._turn is None:
            self.queue(text)  # between two turns, or while the client looks for a lost server
        else:
            self._turn.steer(text)

    def queue(self, text: str) -> None:
        """Keep `text` for a separate turn after this one (at once if idle)."""
        if not self.running:
            self._begin(text)
            return
        self.state.queue(text)
        self._tell_queue()

    async def withdraw(self, text: str) -> bool:
        """Take a queued prompt back; False if it is no longer queued: its turn may have begun."""
        if text not in self.state.queued:
            return False
        self.state.withdraw(text)
        self._tell_queue()
        return True

    def stop(self) -> None:
        """Stop the running turn, keep what was said, and end running commands.

        Queued prompts stay queued until the next submit.
        """
        if self._turn is not None and self.running:
            self._turn.stop()
        else:
            self._stop_first = self.running
            self._busy.cancel()

    def overrule(self) -> str:
        """With `model = "auto"`, give the running turn or the next one to the other model. Return what was done, in
        words; empty if a `Routed` event reports it."""
        if self._answering.pair is None:
            raise FulgurError('there is only one model; model = "auto" chooses between two')
        if self._turn is not None and self.running:
            self._turn.overrule()
            return ""
        return self._answering.pair.prefer_another()

    def approve(self, approval_id: str, decision: Decision, rejected: tuple[int, ...] = ()) -> None:
        """Answer an `approval.asked` event; the hunks in `rejected`, counted from 1, are left out."""
        self._approvals.settle(approval_id, Answered(decision, rejected))

    async def review(self, title: str, changes: list[Change]) -> tuple[list[Change], str] | None:
        """Ask about changes that nobody has seen yet, if the policy requires it. Return the accepted changes and, in
        words, the rejected ones; None if the person said no. If nobody can be asked, all are accepted: whoever started
        this allowed it."""
        planned = Planned.of(changes, self.bench.files)
        question = self._approvals.about_change("", title, *planned.shown)
        if question is None or not self._interactive:
            return changes, ""
        answer = await self._approvals.ask(self.state.turn.number, question)
        if answer.decision == "stop":
            self.stop()
        return planned.accepted(answer) if answer.allows else None

    @property
    def running(self) -> bool:
        """Whether a turn runs."""
        return self._busy.running

    @property
    def model(self) -> str:
        """The model asked for."""
        return self.link.info.name

    @property
    def link(self) -> ModelLink:
        """The connection to that model."""
        return self._answering.link

    def _settle(self) -> None:
        """Recompute what depends on the settings."""
        self.guidance = Guidance.of(self.settings, self.bench.policy, self.link)
        self._approvals = Approvals(self.settings, self.bench.policy, self._emit, self._interactive)

    def _emit(self, event: AgentEvent) -> None:
        if isinstance(event, events.UsageReported):
            self._answering.note_speed(self._turn.link if self._turn is not None else self.link, event)
        self._broadcast.send(event)

    def _begin(self, text: str) -> None:
        self._stop_first = False
        self._busy.begin(self._work(text))

    def _begin_queued(self) -> None:
        if self.state.queued:
            self._begin(self._take_queued())

    def _take_queued(self) -> str:
        text = self.state.take_queued()
        self._tell_queue()
        return text

    def _tell_queue(self) -> None:
        self._emit(events.QueueChanged(prompts=tuple(self.state.queued)))

    async def _work(self, text: str) -> None:
        """Run this turn and those queued meanwhile. An error between turns is reported as a failed turn, so that nobody
        waits for an end that never comes."""
        try:
            await self._turns(text)
        except Exception as error:
            failure = error if isinstance(error, FulgurError) else FulgurError(f"{type(error).__name__}: {error}")
            number = len(self.state.turns) + 1
            self._emit(events.TurnFailed(turn=number, message=failure.message, hint=failure.hint or ""))
        finally:
            self._turn = None

    async def _turns(self, text: str) -> None:
        while True:
            await self._follow_config()
            if self.link.connection.closed:
                self.state.queue(text)  # looking for the server takes a while, and nothing typed may be lost
                await self._answering.look_again()
                self._progress.forget_server()
                if not self.state.queued:
                    return  # withdrawn meanwhile
                text = self.state.take_queued()
            self._turn = turn = self._new_turn(await self._route(text))
            if self._stop_first:
                turn.stop()
            waits = await turn.run(text)
            self._turn, self._answering.link = None, turn.link
            for unsaid in turn.unsaid:
                self.queue(unsaid)
            if waits or not self.state.queued:
                return
            text = self._take_queued()

    async def _route(self, text: str) -> Relay | None:
        """With `model = "auto"`, choose the model that works on the prompt."""
        before, pair = self.link, self._answering.pair
        choice = await self._answering.choose(text, self._progress.context_used)
        if pair is None or choice is None:
            return None
        if self.link is not before:
            self._progress.forget_model()
            self.state.chose_model(self.link.info.name, self.link.settings.provider.id)
        return Relay(pair, choice, self.settings, self._emit)

    def _new_turn(self, relay: Relay | None = None) -> Turn:
        number = len(self.state.turns) + 1
        if self.guidance.outdated(self.settings):
            self._settle()
            self._emit(Warned(message="the rules or skills changed and were reloaded"))
        emit = relay.watch if relay is not None else self._emit
        instructions = self.guidance.instructions
        context = TurnContext(number, self.settings, self.link, self.state, self._progress, instructions, emit)
        if relay is not None and relay.may_escalate:
            context = replace(context, drift=relay.drift)
        way, reason = route(self.link.info, self.settings)
        return Turn(context, self.bench, self.changes, self._approvals, self._tools(), way, reason, self._format, relay)
