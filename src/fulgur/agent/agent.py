"""The agent as its screens use it: prompts go in as plain calls, everything else comes out as events."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from fulgur.agent.broadcast import Broadcast
from fulgur.agent.loop.approvals import Approvals
from fulgur.agent.loop.context import Progress, TurnContext
from fulgur.agent.loop.guards import warm_guards
from fulgur.agent.loop.prompt import find_rules, instructions, rules_left_out
from fulgur.agent.loop.turn import Turn
from fulgur.agent.route.models import ModelLink
from fulgur.agent.route.router import route
from fulgur.agent.session import log as session
from fulgur.agent.session.changes import Changes
from fulgur.agent.session.log import SessionLog, stored_log
from fulgur.agent.session.opening import opening_events
from fulgur.agent.session.state import SessionState
from fulgur.agent.session.undo_store import prune_when_due
from fulgur.agent.status import status_of
from fulgur.agent.workbench import Workbench
from fulgur.config.effects import without_effect
from fulgur.config.settings import Settings
from fulgur.errors import FulgurError
from fulgur.protocol import agent as events
from fulgur.protocol.agent import AgentEvent, Decision, SessionSummary, Status, TranscriptEntry, Warned
from fulgur.sandbox.choose import shortcomings
from fulgur.tools.mcp import McpTools

T = TypeVar("T")
_WARM_AFTER_SECONDS = 1.0


class Agent:
    """One session on one workspace.

    `submit`, `steer`, `queue`, `stop` and `approve` return at once and never block a key; what they cause arrives as
    events.
    """

    def __init__(self, settings: Settings, link: ModelLink, log: SessionLog, *, interactive: bool) -> None:
        self.settings = settings
        self._link = link
        self._interactive = interactive
        self._broadcast = Broadcast()
        self._emit = self._broadcast.send
        self._turn: Turn | None = None
        self._task: asyncio.Task[Any] | None = None
        self._warming: asyncio.TimerHandle | None = None
        self._mcp = McpTools()
        self._format: dict[str, Any] | None = None
        self._load(log)

    @classmethod
    async def open(
        cls,
        settings: Settings,
        *,
        session: str | None = None,
        fork: str | None = None,
        interactive: bool = True,
        format: dict[str, Any] | None = None,
    ) -> Agent:
        """Start a new session, go on with a stored one (`session`: id, prefix of an id, or "last"), or fork one.

        `interactive` False: nobody answers approvals, so they are denied. `format`: a `text.format` for the answers.
        """
        log = stored_log(settings.home, settings.workspace, session, fork)
        link = await ModelLink.open(settings)
        if log is None:
            log = SessionLog.create(settings.home, settings.workspace, link.info.name)
        try:
            agent = cls(settings, link, log, interactive=interactive)
        except BaseException:  # a damaged session
            await link.connection.close()
            raise
        agent._format = format
        if "tools" in link.info.abilities:
            for warning in await agent._mcp.start(settings.mcp_servers):
                agent._emit(Warned(message=warning))
        agent._announce()
        agent._prune()
        if interactive:
            # A person types for longer than this, and the first screen comes first.
            agent._warming = asyncio.get_running_loop().call_later(_WARM_AFTER_SECONDS, agent._warm)
        return agent

    def events(self) -> AsyncIterator[AgentEvent]:
        """All events from now on, in order; ends after `close`. Each call is its own subscription."""
        return self._broadcast.subscribe()

    def submit(self, text: str) -> None:
        """Start a turn; while one runs this is `steer`."""
        self.steer(text)

    def steer(self, text: str) -> None:
        """Redirect the running answer at the next token; what was said stays. Without a running turn: `submit`."""
        if not self.running:
            self._begin(text)
        elif self._turn is None:
            self.queue(text)  # between two turns, or while a lost server is looked for
        else:
            self._turn.steer(text)

    def queue(self, text: str) -> None:
        """Keep `text` for a turn of its own after this one (at once when idle)."""
        if not self.running:
            self._begin(text)
            return
        self.state.queue(text)
        self._emit(events.Queued(text=text, position=len(self.state.queued)))

    def stop(self) -> None:
        """Stop the running turn and keep what was said; running commands are ended.

        Queued prompts stay queued until the next submit.
        """
        if self._turn is not None and self.running:
            self._turn.stop()

    def approve(self, approval_id: str, decision: Decision) -> None:
        """Answer an `approval.asked`."""
        self._approvals.settle(approval_id, decision)

    async def undo(self) -> None:
        """Put the files back to what they were before the last turn that changed any (`Undone`)."""
        turn, restored = await self._alone("undo", self.changes.undo())
        for failure in restored.failed:
            self._emit(Warned(message=f"not put back: {failure}"))
        self._emit(events.Undone(turn=turn, paths=tuple(restored.paths), kept=tuple(restored.kept)))

    async def compact(self) -> None:
        """Replace old items by a summary now (`Compacted`)."""
        await self._alone("compact", self._new_turn().compact())

    async def set_model(self, model: str, *, provider: str | None = None) -> None:
        """Answer with another model from the next turn on; warns about keys without effect on it."""
        settings = self.settings.with_changes(model=model, provider=provider)
        await self._alone("change the model", self._change(settings))

    async def set_profile(self, name: str) -> None:
        """Apply the profile's settings from the next turn on."""
        await self._alone("change the profile", self._change(self.settings.with_changes(profile=name)))

    def set_fast(self, on: bool) -> None:
        """Ask for the fast service tier (`service_tier = "fast"`), or not."""
        self.settings = self.settings.with_changes(overrides=[f"service_tier={'fast' if on else 'default'}"])

    async def models(self) -> list[str]:
        """The names of the models the provider offers."""
        return [str(entry["id"]) for entry in await self._link.connection.models()]

    async def resume(self, name: str) -> None:
        """Leave this session and go on with a stored one (id, prefix of an id, or "last"); `SessionStarted` follows."""
        self._must_be_idle("resume")
        self._switch(SessionLog(session.find_session(self.settings.home, name, self.settings.workspace)))

    async def fork(self) -> str:
        """Go on in a copy of this session from here; the id of the copy."""
        self._must_be_idle("fork")
        self._switch(session.fork_session(self.settings.home, self.state.log.path))
        return self.state.log.id

    def sessions(self) -> list[SessionSummary]:
        """Stored sessions of this workspace, newest first."""
        return session.summaries(self.settings.home, self.settings.workspace)

    def transcript(self) -> list[TranscriptEntry]:
        """What was said so far, for a screen that shows a resumed session."""
        return list(self.state.transcript)

    def diff(self) -> str:
        """Unified diff of every file changed in this session, against its start."""
        return self.changes.diff()

    def status(self) -> Status:
        """Which model really answers, the backend, limits, context, sandbox, and every config key with its source."""
        return status_of(
            self.settings, self._link, self.state, self._progress, self.bench, self._warnings, self.running
        )

    @property
    def running(self) -> bool:
        """Whether a turn runs."""
        return self._task is not None and not self._task.done()

    @property
    def workspace(self) -> Path:
        """The project folder."""
        return self.settings.workspace

    async def wait(self) -> None:
        """Until no turn runs and nothing is queued."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Stop the turn, end the shell, close the connection; the session stays on disk."""
        self.stop()
        if self._warming is not None:
            self._warming.cancel()
        if self._task is not None:
            if self._turn is None:
                self._task.cancel()
            await asyncio.wait([self._task])
        self._leave()
        await self._mcp.close()
        await self._link.connection.close()
        self._broadcast.close()

    def _load(self, log: SessionLog, state: SessionState | None = None) -> None:
        self.state = state or SessionState.load(log)
        self.bench = Workbench.make(self.settings, log.id)
        self.changes = Changes(self.bench, self.state, self.settings.flag("features.undo"))
        self._progress = Progress()
        self._recovered = self.bench.files.recover()
        self._settle()

    def _settle(self) -> None:
        """What follows from the settings."""
        self._rules = find_rules(self.settings)
        self._approvals = Approvals(self.settings, self.bench.policy, self._emit, self._interactive)
        self._instructions = instructions(self.settings, self.bench.policy, self._rules)
        info = self._link.info
        self._warnings = [*self.settings.warnings, *without_effect(self.settings, info.name, info.abilities)]
        self._warnings += rules_left_out(self.settings)
        self._limits = shortcomings(self.bench.policy)
        if self._limits:
            self._warnings.append(self._limits)

    def _prune(self) -> None:
        """Once a day, beside everything else: undo's contents stay within their bounds."""
        loop = asyncio.get_running_loop()

        def work() -> None:
            if pruned := prune_when_due(self.settings, [self.state.log.id]):
                with contextlib.suppress(RuntimeError):  # the loop may be over
                    loop.call_soon_threadsafe(self._emit, Warned(message=str(pruned)))

        threading.Thread(target=work, daemon=True).start()

    def _warm(self) -> None:
        if route(self._link.info, self.settings)[0] != "chat":
            warm_guards(self.settings, self.bench)

    def _announce(self) -> None:
        for event in opening_events(
            self.state, self._link.info.name, self._warnings, self._limits, self.bench.refusal, self._recovered
        ):
            self._emit(event)

    def _switch(self, log: SessionLog) -> None:
        state = SessionState.load(log)  # first: of a damaged one nothing comes, and this session goes on
        self._leave()
        self._load(log, state)
        self._announce()

    def _leave(self) -> None:
        self.bench.close()
        self.state.log.close()

    async def _change(self, settings: Settings) -> None:
        if settings.provider != self.settings.provider:
            link = await ModelLink.open(settings)
            await self._link.connection.close()
            self._link = link
        else:
            await self._link.choose(settings)
        self.settings = settings
        self.bench.close()
        self.bench = Workbench.make(settings, self.state.log.id)
        self.changes = Changes(self.bench, self.state, settings.flag("features.undo"))
        self._progress.forget_server()
        self._settle()
        self.state.chose_model(self._link.info.name, settings.provider.id)
        for warning in self._warnings:
            self._emit(Warned(message=warning, quiet=warning == self._limits))

    async def _alone(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        """Do what must not run beside a turn; prompts that come meanwhile are queued and start after it."""
        try:
            self._must_be_idle(what)
        except FulgurError:
            work.close()
            raise
        task = self._task = asyncio.get_running_loop().create_task(work)
        try:
            return await task
        finally:
            if self._task is task and task.done() and self.state.queued:
                self._begin(self.state.take_queued())

    def _begin(self, text: str) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work(text))

    async def _work(self, text: str) -> None:
        """This turn, and those that were queued meanwhile. What goes wrong between turns is told as a failed one, so
        that nobody waits for an end that does not come."""
        try:
            await self._turns(text)
        except Exception as error:
            told = error if isinstance(error, FulgurError) else FulgurError(f"{type(error).__name__}: {error}")
            number = len(self.state.turns) + 1
            self._emit(events.TurnFailed(turn=number, message=told.message, hint=told.hint or ""))
        finally:
            self._turn = None

    async def _turns(self, text: str) -> None:
        while True:
            if self._link.connection.closed:
                self.state.queue(text)  # looking for the server takes a while, and nothing typed may be lost
                self._link = await self._link.reopened(self.settings)
                self._progress.forget_server()
                text = self.state.take_queued()
            self._turn = turn = self._new_turn()
            waits = await turn.run(text)
            self._turn = None
            for unsaid in turn.unsaid:
                self.queue(unsaid)
            if waits or not self.state.queued:
                return
            text = self.state.take_queued()

    def _new_turn(self) -> Turn:
        number = len(self.state.turns) + 1
        if find_rules(self.settings) != self._rules:
            self._settle()
            self._emit(Warned(message="the rules (AGENTS.md) changed and were read again"))
        context = TurnContext(
            number, self.settings, self._link, self.state, self._progress, self._instructions, self._emit
        )
        way, reason = route(self._link.info, self.settings)
        tools = [*self.bench.tools, *self._mcp.tools]
        return Turn(context, self.bench, self.changes, self._approvals, tools, way, reason, self._format)

    def _must_be_idle(self, what: str) -> None:
        if self.running:
            raise FulgurError(f"cannot {what} while a turn runs", hint="Esc stops it.")
