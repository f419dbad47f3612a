"""What a session has of subagents: its roles, the crew at work, and solutions to choose from.

A crew is made of agents, so what makes one is imported when the first is wanted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fulgur.agent.crew.roles import Role, find_roles
from fulgur.errors import FulgurError
from fulgur.protocol.agent import Warned
from fulgur.tools.base import Tool
from fulgur.workspace.files import Files

if TYPE_CHECKING:
    from fulgur.agent.agent import Agent
    from fulgur.agent.crew.crew import Crew
    from fulgur.agent.crew.variants import Variants


class Team:
    """The subagents of one session."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._crew: Crew | None = None
        self._variants: Variants | None = None
        self._problem = ""

    def tools(self) -> list[Tool[Any]]:
        """The tool that gives tasks to subagents, where there are roles."""
        roles = self._roles()
        if not roles:
            return []
        from fulgur.agent.crew.delegate import delegate_tool

        return [delegate_tool(self.crew, roles, self._agent.state.member)]

    def crew(self) -> Crew:
        """The one that works in this session."""
        if self._crew is None:
            self._crew = self._new_crew(self._agent.bench.files, None)
        return self._crew

    async def replace_crew(self, files: Files, copies: Path) -> Crew:
        """One for a task list, which has its own way to write files; `close_crew` ends it."""
        await self.close_crew()
        self._crew = self._new_crew(files, copies)
        return self._crew

    def _new_crew(self, files: Files, copies: Path | None) -> Crew:
        from fulgur.agent.crew.crew import Crew

        agent = self._agent
        return Crew(agent.settings, files, agent.tell_event, agent.link, copies, agent.review)

    @property
    def members(self) -> list[str]:
        """The names of those at work."""
        return self._crew.running if self._crew is not None else []

    def tell(self, member: str, text: str) -> None:
        """Redirect one at work, or `all` of them."""
        if self._crew is None:
            raise FulgurError("no subagent is at work")
        self._crew.steer(member, text)

    @property
    def variants(self) -> Variants | None:
        """Solutions to choose from."""
        return self._variants

    @variants.setter
    def variants(self, variants: Variants | None) -> None:
        if self._variants is not None:
            self._variants.close()
        self._variants = variants

    async def close_crew(self) -> None:
        """End its connections."""
        if self._crew is not None:
            await self._crew.close()
            self._crew = None

    async def close(self) -> None:
        """Let go of everything."""
        self.variants = None
        await self.close_crew()

    def _roles(self) -> dict[str, Role]:
        try:
            return find_roles(self._agent.settings)
        except FulgurError as error:
            if error.message != self._problem:  # said once
                self._problem = error.message
                self._agent.tell_event(Warned(message=error.message, hint=error.hint or ""))
            return {}
