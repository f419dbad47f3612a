"""The agent as its screens use it: prompts go in as plain calls, everything else comes out as events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fulgur.agent import session
from fulgur.agent.approvals import Approvals
from fulgur.agent.broadcast import Broadcast
from fulgur.agent.changes import Changes
from fulgur.agent.context import Progress, TurnContext
from fulgur.agent.mcp import McpTools
from fulgur.agent.models import ModelLink
from fulgur.agent.opening import opening_events
from fulgur.agent.prompt import find_rules, instructions
from fulgur.agent.router import route
from fulgur.agent.session import SessionLog, stored_log
from fulgur.agent.state import SessionState
from fulgur.agent.status import status_of
from fulgur.agent.turn import Turn
from fulgur.agent.workbench import Workbench
from fulgur.config.effects import without_effect
from fulgur.config.settings import Settings
from fulgur.errors import FulgurError
from fulgur.protocol import agent as events
from fulgur.protocol.agent import AgentEvent, Decision, SessionSummary, Status, TranscriptEntry, Warned


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
        self._turn: Turn | None = None
        self._task: asyncio.Task[None] | None = None
        self._side: set[asyncio.Task[None]] = set()
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
        agent = cls(settings, link, log, interactive=interactive)
        agent._format = format
        if "tools" in link.info.abilities:
            for warning in await agent._mcp.start(settings.mcp_servers):
                agent._emit(Warned(message=warning))
        agent._announce()
        return agent

    def events(self) -> AsyncIterator[AgentEvent]:
        """All events from now on, in order; ends after `close`. Each call is its own subscription."""
        return self._broadcast.subscribe()

    def submit(self, text: str) -> None:
        """Start a turn; while one runs this is `steer`."""
        if self.running:
            self.steer(text)
        else:
            self._begin(text)

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
            self._aside(self._turn.stop())

    def approve(self, approval_id: str, decision: Decision) -> None:
        """Answer an `approval.asked`."""
        self._approvals.settle(approval_id, decision)

    async def undo(self) -> None:
        """Put the files back to what they were before the last turn that changed any (`Undone`)."""
        self._must_be_idle("undo")
        turn, restored = await self.changes.undo()
        for failure in restored.failed:
            self._emit(Warned(message=f"not put back: {failure}"))
        self._emit(events.Undone(turn=turn, paths=tuple(restored.paths), kept=tuple(restored.kept)))

    async def compact(self) -> None:
        """Replace old items by a summary now (`Compacted`)."""
        self._must_be_idle("compact")
        await self._new_turn().compact()

    async def set_model(self, model: str, *, provider: str | None = None) -> None:
        """Answer with another model from the next turn on; warns about keys without effect on it."""
        await self._change(self.settings.with_changes(model=model, provider=provider))

    async def set_profile(self, name: str) -> None:
        """Apply the profile's settings from the next turn on."""
        await self._change(self.settings.with_changes(profile=name))

    def set_fast(self, on: bool) -> None:
        """Ask for the fast service tier (`service_tier = "fast"`), or not."""
        self.settings = self.settings.with_changes(overrides=[f"service_tier={'fast' if on else 'default'}"])

    async def models(self) -> list[str]:
        """The names of the models the provider offers."""
        return [str(entry["id"]) for entry in await self._link.connection.models()]

    async def resume(self, name: str) -> None:
        """Leave this session and go on with a stored one (id, prefix of an id, or "last"); `SessionStarted` follows."""
        self._must_be_idle("resume")
        path = session.find_session(self.settings.home, name, self.settings.workspace)
        self._leave()
        self._load(SessionLog(path))
        self._announce()

    async def fork(self) -> str:
        """Go on in a copy of this session from here; the id of the copy."""
        self._must_be_idle("fork")
        log = session.fork_session(self.settings.home, self.state.log.path)
        self._leave()
        self._load(log)
        self._announce()
        return log.id

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
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """Stop the turn, end the shell, close the connection; the session stays on disk."""
        self.stop()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for task in list(self._side):
            task.cancel()
        self._leave()
        await self._mcp.close()
        await self._link.connection.close()
        self._broadcast.close()

    # --- inside ---

    def _load(self, log: SessionLog) -> None:
        self.state = SessionState.load(log)
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

    def _announce(self) -> None:
        for event in opening_events(
            self.state, self._link.info.name, self._warnings, self.bench.refusal, self._recovered
        ):
            self._emit(event)

    def _leave(self) -> None:
        self.bench.close()
        self.state.log.close()

    async def _change(self, settings: Settings) -> None:
        self._must_be_idle("change this")
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
            self._emit(Warned(message=warning))

    def _begin(self, text: str) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work(text))

    async def _work(self, text: str) -> None:
        """This turn, and those that were queued meanwhile."""
        while True:
            self._turn = None
            await self._reconnect()
            self._turn = turn = self._new_turn()
            stopped = await turn.run(text)
            self._turn = None
            for unsaid in turn.unsaid:
                self.queue(unsaid)
            if stopped or not self.state.queued:
                return
            text = self.state.take_queued()

    async def _reconnect(self) -> None:
        """Look for a server that was lost, or start it, again; if it is not there, the turn fails and says why."""
        if self._link.connection.closed:
            with contextlib.suppress(FulgurError):
                lost, self._link = self._link, await ModelLink.open(self.settings)
                self._progress.forget_server()
                await lost.connection.close()

    def _new_turn(self) -> Turn:
        number = len(self.state.turns) + 1
        context = TurnContext(
            number, self.settings, self._link, self.state, self._progress, self._instructions, self._emit
        )
        way, reason = route(self._link.info, self.settings)
        tools = [*self.bench.tools, *self._mcp.tools]
        return Turn(context, self.bench, self.changes, self._approvals, tools, way, reason, self._format)

    def _aside(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._side.add(task)
        task.add_done_callback(self._side.discard)

    def _must_be_idle(self, what: str) -> None:
        if self.running:
            raise FulgurError(f"cannot {what} while a turn runs", hint="Esc stops it.")

    def _emit(self, event: AgentEvent) -> None:
        self._broadcast.send(event)
