"""The agent as its screens use it: prompts go in as method calls, everything else comes out as events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from fulgur.agent.crew.team import Team
from fulgur.agent.loop.calls import file_changed
from fulgur.agent.loop.context import Progress
from fulgur.agent.loop.guards import warm_guards
from fulgur.agent.loop.own_command import run_own
from fulgur.agent.loop.program_turn import program_turn
from fulgur.agent.route.answering import Answering
from fulgur.agent.route.models import ModelLink
from fulgur.agent.route.router import route
from fulgur.agent.session import log as session
from fulgur.agent.session.changes import Changes, restored_events
from fulgur.agent.session.history import estimate_tokens, message
from fulgur.agent.session.log import SessionLog, stored_log
from fulgur.agent.session.opening import opening_events
from fulgur.agent.session.state import SessionState
from fulgur.agent.session.undo_store import prune_beside
from fulgur.agent.status import status_of
from fulgur.agent.turns import Turns
from fulgur.agent.workbench import Workbench
from fulgur.config.settings import Settings
from fulgur.errors import FulgurError
from fulgur.protocol import agent as events
from fulgur.protocol.agent import AgentEvent, Warned
from fulgur.protocol.session import ModelOffer, SessionSummary, Status, TranscriptEntry
from fulgur.tools.base import Tool
from fulgur.tools.mcp import McpTools
from fulgur.tools.skill import skill_tool
from fulgur.workspace.files import FileDiff

_WARM_AFTER_SECONDS = 1.0


class Agent(Turns):
    """One session on one workspace."""

    def __init__(self, settings: Settings, answering: Answering, log: SessionLog, *, interactive: bool) -> None:
        super().__init__(settings, answering, interactive=interactive)
        self._config_problem = ""
        self._tool_names: Collection[str] | None = None
        self.team: Team | None = Team(self)
        self._warming: asyncio.TimerHandle | None = None
        self._mcp = McpTools()
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
        link: ModelLink | None = None,
        tools: Collection[str] | None = None,
    ) -> Agent:
        """Start a new session, resume a stored one (`session`: id, prefix of an id, or "last"), or fork one.

        With `interactive` False nobody can answer approvals, so they are denied. `format` is a `text.format` for the
        answers. A subagent gets the `link` to its model and the names of its `tools` (None: every tool except
        delegation).
        """
        own = {"subagent": True} if link is not None else {}
        log = stored_log(settings.home, settings.workspace, session, fork, **own)
        answering = await Answering.open(settings) if link is None else Answering(settings, link)
        if log is None:
            log = SessionLog.create(settings.home, settings.workspace, answering.link.info.name, **own)
        try:
            agent = cls(settings, answering, log, interactive=interactive)
        except BaseException:  # a damaged session
            await answering.close()
            raise
        agent._format, agent._tool_names = format, tools
        if link is not None:
            agent.team = None
        await agent._start_mcp(settings)
        agent._announce()
        if unknown := set(tools or ()) - {tool.name for tool in agent._tools()}:
            agent._emit(Warned(message=f"there is no tool named {', '.join(sorted(unknown))}"))
        prune_beside(settings, agent.state.log.id, lambda pruned: agent._emit(Warned(message=str(pruned))))
        if interactive:
            # Warm up after the first screen is drawn; a person types for longer than this.
            agent._warming = asyncio.get_running_loop().call_later(_WARM_AFTER_SECONDS, agent._warm)
        return agent

    def events(self) -> AsyncIterator[AgentEvent]:
        """Iterate over all events from now on, in order; ends after `close`. Each call is a separate subscription."""
        return self._broadcast.subscribe()

    def tell(self, member: str, text: str) -> None:
        """Redirect one running subagent, or `all` of them."""
        if self.team is not None:
            self.team.tell(member, text)

    @property
    def members(self) -> list[str]:
        """The names of the running subagents."""
        return self.team.members if self.team is not None else []

    async def undo(self) -> None:
        """Put the files back to what they were before the last turn that changed any (`Undone`)."""
        for event in restored_events(*await self._busy.alone("undo", self.changes.undo())):
            self._emit(event)

    async def rewind(self, turn: int) -> str:
        """Go back to before a turn: restore the files and fork the session there. Return that turn's prompt."""
        if not 1 <= turn <= len(self.state.turns):
            have = f"the session has turns 1 to {len(self.state.turns)}" if self.state.turns else "it has no turns yet"
            raise FulgurError(f"there is no turn {turn} to go back to: {have}")
        prompt = self.state.turns[turn - 1].text
        for restored in await self._busy.alone("rewind", self.changes.undo_back_to(turn)):
            for event in restored_events(turn, restored):
                self._emit(event)
        self._switch(session.fork_session(self.settings.home, self.state.log.path, before=turn))
        return prompt

    async def run_own(self, command: str) -> None:
        """Run a command that the person typed; `stop` ends it. It is shown as a call, and the model sees it."""
        await self._busy.stoppable(
            "run a command", run_own(command, self.bench.shell, self.state, self._emit), f"stopped: {command}"
        )

    async def job(self, name: str, *, stop: bool = False) -> str:
        """Return what a background command has printed so far; `stop` then ends it. `JobsChanged` lists the names."""
        jobs = self.bench.shell.jobs
        said = jobs.output(name)
        if stop:
            await jobs.stop(name)
        return said

    async def compact(self) -> None:
        """Replace old items by a summary now (`Compacting`, `Compacted`); `stop` cancels it and changes nothing."""
        await self._busy.stoppable("compact", self._new_turn().compact(), "stopped: nothing was compacted")

    async def as_turn(self, text: str, work: Callable[[], Awaitable[str]]) -> bool:
        """Run the program's own work, such as a task list, as a turn: recorded, undone and stopped like any other. The
        string that `work` returns is the turn's message. True when it finished."""
        turn = program_turn(self.state, self.changes, self._emit, text, work)
        return await self._busy.cancellable("do this", turn)

    async def program(self, line: str) -> None:
        """Run /tasks, /plan, /variants or /take as typed; return when its turn has ended."""
        from fulgur.agent.crew.programs import run_line

        await run_line(self, line)

    def tell_event(self, event: AgentEvent) -> None:
        """Send an event to every screen."""
        self._emit(event)

    def note_change(self, diff: FileDiff) -> None:
        """Record and announce a file that this turn changed."""
        self.state.changed(diff)
        self._emit(file_changed(self.state.turn.number, diff))

    async def new(self) -> str:
        """Leave this session and start a new one; return its id."""
        self._busy.must_be_idle("start a new session")
        self._switch(SessionLog.create(self.settings.home, self.settings.workspace, self.link.info.name))
        return self.state.log.id

    async def set_model(self, model: str, *, provider: str | None = None) -> None:
        """Switch to another model from the next turn on; warns about config keys that have no effect on it.

        `ollama:qwen3` also names the provider; `ollama:` takes the first model that it offers.
        """
        if provider is None:
            provider, model = self.settings.split_model(model)
        settings = self.settings.with_changes(model=model, provider=provider)
        here = self.settings.provider.id
        if provider is None and settings.provider.id != here:  # `here` came with an earlier model
            settings = self.settings.with_changes(model=model, provider=here)
        await self._busy.alone("change the model", self._change(settings))

    async def set_profile(self, name: str) -> None:
        """Apply the profile's settings from the next turn on."""
        await self._busy.alone("change the profile", self._change(self.settings.with_changes(profile=name)))

    async def set_options(self, overrides: list[str]) -> None:
        """Set config keys for this session from the next turn on, as `-c` takes them."""
        settings = self.settings.with_changes(overrides=overrides)
        await self._busy.alone("change the settings", self._change(settings))

    def set_fast(self, on: bool) -> None:
        """Turn the fast service tier (`service_tier = "fast"`) on or off."""
        self.settings = self.settings.with_changes(overrides=[f"service_tier={'fast' if on else 'default'}"])

    async def models(self) -> list[str]:
        """The names of the models the provider offers."""
        return [str(entry["id"]) for entry in await self.link.connection.models()]

    async def offers(self) -> list[ModelOffer]:
        """Every model that could answer: the provider's, the embedded ones, and what runs on this machine."""
        return await self._answering.offers(self.settings)

    async def resume(self, name: str) -> None:
        """Leave this session and resume a stored one (id, prefix of an id, or "last"); `SessionStarted` follows."""
        self._busy.must_be_idle("resume")
        self._switch(SessionLog(session.find_session(self.settings.home, name, self.settings.workspace)))

    async def fork(self) -> str:
        """Continue in a copy of this session; return the id of the copy."""
        self._busy.must_be_idle("fork")
        self._switch(session.fork_session(self.settings.home, self.state.log.path))
        return self.state.log.id

    def sessions(self) -> list[SessionSummary]:
        """Stored sessions of this workspace, newest first."""
        return session.summaries(self.settings.home, self.settings.workspace)

    def transcript(self) -> list[TranscriptEntry]:
        """The conversation so far, for a screen that shows a resumed session."""
        return list(self.state.transcript)

    def diff(self) -> str:
        """Return the unified diff of every file changed in this session, against its start."""
        return self.changes.diff()

    def status(self) -> Status:
        """The model that really answers, backend, limits, context, sandbox, and every config key with its source."""
        status = status_of(
            self.settings, self.link, self.state, self._progress, self.bench, self.guidance.warnings, self.running
        )
        return msgspec.structs.replace(status, mcp_tools=tuple(tool.name for tool in self._mcp.tools))

    @property
    def workspace(self) -> Path:
        """The project folder."""
        return self.settings.workspace

    async def wait(self) -> None:
        """Wait until no turn runs and nothing is queued."""
        await self._busy.wait()

    async def close(self) -> None:
        """Stop the turn, end the shell and close the connection; the session stays on disk."""
        self.stop()
        if self._warming is not None:
            self._warming.cancel()
        if self._turn is None:
            self._busy.cancel(force=True)
        await self._busy.wait()
        self.bench.close()
        self.state.log.close()
        if self.team is not None:
            await self.team.close()
        await self._mcp.close()
        await self._answering.close()
        self._broadcast.close()

    def _load(self, log: SessionLog, state: SessionState | None = None) -> None:
        self.state = state or SessionState.load(log)
        self._new_bench(log.id)
        self.changes = Changes(self.bench, self.state, self.settings.flag("features.undo"))
        self._progress = Progress()
        self._recovered = self.bench.files.recover()
        self._settle()
        if self.state.turns:  # a resumed session already fills the context before its first request
            said = [message("developer", self.guidance.instructions), *self.state.history.visible()]
            self._progress.context_used = estimate_tokens(said)
            self._progress.covered = len(said) - 1

    async def _start_mcp(self, settings: Settings) -> None:
        await self._mcp.close()
        self._mcp = McpTools()
        if "tools" in self.link.info.abilities:
            for warning in await self._mcp.start(settings.mcp_servers):
                self._emit(Warned(message=warning))

    def _warm(self) -> None:
        if route(self.link.info, self.settings)[0] != "chat":
            warm_guards(self.settings, self.bench)

    def _announce(self) -> None:
        for event in opening_events(
            self.state,
            self.link.info.name,
            self.guidance.warnings,
            self.guidance.limits,
            self.bench.refusal,
            self._recovered,
        ):
            self._emit(event)

    def _switch(self, log: SessionLog) -> None:
        state = SessionState.load(log)  # first: if this raises, the current session goes on
        self._leave_bench()
        self.state.log.close()
        self._load(log, state)
        self._announce()

    def _new_bench(self, session_id: str) -> None:
        self.bench = bench = Workbench.make(self.settings, session_id)
        bench.shell.jobs.changed = lambda: self._emit(events.JobsChanged(jobs=bench.shell.jobs.states()))

    def _leave_bench(self) -> None:
        """Close the workbench and report which background commands that ended."""
        had = self.bench.shell.jobs.states()
        if ended := self.bench.close():
            self._emit(Warned(message=f"ended these background commands: {', '.join(ended)}"))
        if had:
            self._emit(events.JobsChanged(jobs=()))

    async def _follow_config(self) -> None:
        """Apply changes of the config files from the next turn on; report a faulty config once."""
        try:
            settings = self.settings.reloaded()
            if settings is self.settings:
                return
            if changed := settings.differs_from(self.settings):
                await self._change(settings)
                named = ", ".join(changed)
                self._emit(Warned(message=f"the config changed and was reloaded: {named}"))
            self.settings, self._config_problem = settings, ""
        except FulgurError as error:
            if error.message != self._config_problem:
                self._config_problem = error.message
                message = f"the changed config is invalid and not used: {error.message}"
                self._emit(Warned(message=message, hint=error.hint or ""))

    async def _change(self, settings: Settings) -> None:
        await self._answering.change(settings)
        if settings.mcp_servers != self.settings.mcp_servers:
            await self._start_mcp(settings)
        if self.team is not None:
            await self.team.close_crew()
        self.settings = settings
        if not self.bench.fits(settings):
            self._leave_bench()
            self._new_bench(self.state.log.id)
        self.changes = Changes(self.bench, self.state, settings.flag("features.undo"))
        self._progress.forget_server()
        self._settle()
        self.state.chose_model(self.link.info.name, self.link.settings.provider.id)
        self._emit(events.ModelChosen(model=self.link.info.name))
        for warning in self.guidance.warnings:
            self._emit(Warned(message=warning, quiet=warning == self.guidance.limits))

    def _tools(self) -> list[Tool[Any]]:
        tools = [*self.bench.tools, *self._mcp.tools]
        if self.guidance.skills:
            tools.append(skill_tool(self.guidance.skills))
        if self._tool_names is not None:
            return [tool for tool in tools if tool.name in self._tool_names]
        return tools + (self.team.tools() if self.team is not None else [])
