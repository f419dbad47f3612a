"""One subagent: an agent with its role's model, tools and sandbox, in a copy of the workspace if it may write."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fulgur.agent.agent import Agent
from fulgur.agent.crew.links import Links
from fulgur.agent.crew.roles import Role, narrower
from fulgur.agent.route.relay import AUTO
from fulgur.agent.route.rules import Task, decide
from fulgur.config.keys import Value
from fulgur.config.settings import Settings
from fulgur.errors import FulgurError
from fulgur.protocol import agent as events
from fulgur.protocol.agent import AgentEvent, MemberStarted, MemberTold
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.copies import WorkspaceCopy

IN_A_COPY = (
    "You are one of several agents that work at the same time, each in its own copy of the project (without its git "
    "history). Your changes are merged into the project when you are done: change only what your task needs. Nobody "
    "can answer questions. Your last message goes to whoever gave you the task."
)


@dataclass
class Outcome:
    """How a member ended. `problems` holds what the last run of each check found, by check name."""

    how: str = "failed"
    text: str = ""
    models: list[str] = field(default_factory=list)
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    problems: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)  # checks that could not run, and why


class Member:
    """Runs one task once. `more` is added to every request (a temperature, say); `fork` is a session to continue
    from."""

    def __init__(
        self,
        name: str,
        role: Role,
        settings: Settings,
        links: Links,
        emit: Callable[[AgentEvent], None],
        *,
        more: dict[str, Any] | None = None,
        fork: str | None = None,
        copies: Path | None = None,
    ) -> None:
        self.name = name
        self.role = role
        self.session_id = ""
        self.model = role.model or settings.model or ""
        self.copy: WorkspaceCopy | None = None
        self.outcome = Outcome()
        self.begun = asyncio.Event()  # set once its first answer starts to arrive
        self._settings = settings
        self._links = links
        self._emit = emit
        self._more = more or {}
        self._fork = fork
        self._copies = copies
        self._agent: Agent | None = None
        self._steers: list[str] = []
        self._over_budget = False

    async def run(self, task: str) -> Outcome:
        """Work on the task to its end; failures are reported in the outcome. Call `close` afterwards."""
        began = time.monotonic()
        lane = 0
        try:
            settings = await asyncio.to_thread(self._prepared, task)
            link, lane = await self._links.lane(settings, self._more)
            self.model = link.info.name
            self._emit(MemberStarted(member=self.name, role=self.role.name, model=self.model, task=task))
            self._agent = agent = await Agent.open(
                settings, fork=self._fork, interactive=False, link=link, tools=self.role.tools or None
            )
            self.session_id = agent.state.log.id
            await self._work(agent, task)
        except (FulgurError, OSError) as error:
            self.outcome.text = str(error)
        finally:
            self.outcome.seconds = round(time.monotonic() - began, 3)
            if self._agent is not None:
                await self._agent.close()
            self._links.free(lane)
        return self.outcome

    def steer(self, text: str) -> None:
        """Redirect the member at the next token; before it has started, add to its task."""
        if self._agent is not None and self._agent.running:
            self._agent.steer(text)
        else:
            self._steers.append(text)

    def stop(self) -> None:
        """Stop it and keep what it did."""
        if self._agent is not None:
            self._agent.stop()

    def close(self) -> None:
        """Remove its copy of the workspace."""
        if self.copy is not None:
            self.copy.close()

    def _prepared(self, task: str) -> Settings:
        """Build its settings, and its copy of the workspace if it may write."""
        role, parent = self.role, self._settings
        mode = narrower(parent.sandbox_mode, role.sandbox)
        if parent.approval_policy == "untrusted":
            mode = narrower(mode, "workspace-write")  # a person who wants to approve everything cannot be asked there
        own = [text for text in (parent.text("developer_instructions"), role.prompt) if text]
        changes: dict[str, Value] = {
            "sandbox_mode": mode,
            "approval_policy": "never",
            "features.undo": False,  # the copy is thrown away
        }
        folder = parent.workspace
        if mode != "read-only":
            confined = mode != "danger-full-access"
            blobs = BlobStore(parent.home / "blobs")
            self.copy = WorkspaceCopy(parent.workspace, blobs, self._copies, links=confined)
            folder = self.copy.folder
            own.insert(0, IN_A_COPY)
        changes["developer_instructions"] = "\n\n".join(own)
        settings = parent.inside(folder, changes)
        model = role.model
        if (model or settings.model) == AUTO:
            model = decide(Task(task), settings).model
        return settings.choosing(model) if model else settings

    async def _work(self, agent: Agent, task: str) -> None:
        listening = agent.events()
        agent.submit("\n\n".join([task, *self._steers]))
        clock = asyncio.get_running_loop().call_later(self.role.seconds, self._spent) if self.role.seconds else None
        try:
            async for event in listening:
                self._take(event)
                if isinstance(event, events.TURN_ENDS):
                    break
        except asyncio.CancelledError:
            agent.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await agent.wait()
            self.outcome.how = "stopped"
            raise
        finally:
            if clock is not None:
                clock.cancel()

    def _spent(self) -> None:
        self._over_budget = True
        self.stop()

    def _take(self, event: AgentEvent) -> None:
        outcome = self.outcome
        match event:
            case events.MessageDelta():
                self.begun.set()
                self._tell("text", event.text)
            case events.ThinkingDelta() | events.ToolOutput():
                self.begun.set()
            case events.ToolStarted():
                self._tell("tool", event.title)
            case events.FileChanged():
                self._tell("file", f"{event.path} (+{event.added} -{event.removed})")
            case events.TurnSteered():
                self._tell("steered", event.text)
            case events.Warned() if not event.quiet:  # about this machine: its session has shown it
                self._tell("warning", event.message)
            case events.GuardReported():
                outcome.problems[event.check] = event.problems
                outcome.unchecked[event.check] = event.unchecked
                if event.problems:
                    self._tell("check", f"{event.check}: {'; '.join(event.problems)}")
            case events.UsageReported():
                self.begun.set()
                self._count(event)
            case events.TurnDone():
                outcome.how, outcome.text = "done", event.text
            case events.TurnStopped():
                outcome.how, outcome.text = "budget" if self._over_budget else "stopped", event.text
            case events.TurnFailed():
                outcome.how, outcome.text = "failed", event.message

    def _count(self, usage: events.UsageReported) -> None:
        outcome = self.outcome
        if usage.model not in outcome.models:
            outcome.models.append(usage.model)
        outcome.input_tokens += usage.input_tokens - usage.cached_tokens
        outcome.output_tokens += usage.output_tokens
        if usage.cost is not None:
            outcome.cost = (outcome.cost or 0.0) + usage.cost
        if self.role.tokens and outcome.input_tokens + outcome.output_tokens > self.role.tokens:
            self._spent()

    def _tell(self, kind: Any, text: str) -> None:
        self._emit(MemberTold(member=self.name, kind=kind, text=text))
