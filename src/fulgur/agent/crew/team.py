"""What a session knows about subagents: its roles, the running crew, and variants to choose from.

A crew is made of agents, so the modules that build one are imported only when it is first needed.
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
    """The roles, crew and variants of one session."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._crew: Crew | None = None
        self._variants: Variants | None = None
        self._problem = ""

    def tools(self) -> list[Tool[Any]]:
        """The tool that gives tasks to subagents, if there are roles."""
        roles = self._roles()
        if not roles:
            return []
        from fulgur.agent.crew.delegate import delegate_tool

        return [delegate_tool(self.crew, roles, self._agent.state.member)]

    def crew(self) -> Crew:
        """The session's crew, created on first use."""
        if self._crew is None:
            self._crew = self._new_crew(self._agent.bench.files, None)
        return self._crew

    async def replace_crew(self, files: Files, copies: Path) -> Crew:
        """Return a crew for a task list, which writes files in its own way; `close_crew` ends it."""
        await self.close_crew()
        self._crew = self._new_crew(files, copies)
        return self._crew

    def _new_crew(self, files: Files, copies: Path | None) -> Crew:
        from fulgur.agent.crew.crew import Crew

        agent = self._agent
        return Crew(agent.settings, files, agent.tell_event, agent.link, copies, agent.review)

    @property
    def members(self) -> list[str]:
        """The names of the running subagents."""
        return self._crew.running if self._crew is not None else []

    def tell(self, member: str, text: str) -> None:
        """Redirect one running subagent, or `all` of them."""
        if self._crew is None:
            raise FulgurError("no subagent is running")
        self._crew.steer(member, text)

    @property
    def variants(self) -> Variants | None:
        """The variants to choose from."""
        return self._variants

    @variants.setter
    def variants(self, variants: Variants | None) -> None:
        if self._variants is not None:
            self._variants.close()
        self._variants = variants

    async def close_crew(self) -> None:
        """Close the crew's connections."""
        if self._crew is not None:
            await self._crew.close()
            self._crew = None

    async def close(self) -> None:
        """Remove the variants and close the crew."""
        self.variants = None
        await self.close_crew()

    def _roles(self) -> dict[str, Role]:
        try:
            return find_roles(self._agent.settings)
        except FulgurError as error:
            if error.message != self._problem:  # report it once
                self._problem = error.message
                self._agent.tell_event(Warned(message=error.message, hint=error.hint or ""))
            return {}
