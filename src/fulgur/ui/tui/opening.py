"""Opening the agent after the first prompt is on screen: what it imports is loaded in a thread, so no key waits."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

from fulgur.config.settings import Settings
from fulgur.ui.tui import highlight

if TYPE_CHECKING:
    from fulgur.agent.agent import Agent


async def open_agent(settings: Settings, session: str | None) -> Agent:
    """The agent of a new or a stored session."""
    module = await asyncio.to_thread(importlib.import_module, "fulgur.agent.agent")
    agent: Agent = await module.Agent.open(settings, session=session)
    asyncio.get_running_loop().run_in_executor(None, highlight.warm)
    return agent
