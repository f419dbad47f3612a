"""Opens the agent after the first prompt is on screen: its imports load in a thread, so no key waits."""

from __future__ import annotations

import asyncio
import gc
import importlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from fulgur.config.settings import Settings
from fulgur.ui.tui import highlight

if TYPE_CHECKING:
    from fulgur.agent.agent import Agent


Opener = Callable[[Settings, str | None], Awaitable["Agent"]]


async def open_agent(settings: Settings, session: str | None) -> Agent:
    """Open the agent of a new or a stored session."""
    module = await asyncio.to_thread(importlib.import_module, "fulgur.agent.agent")
    agent: Agent = await module.Agent.open(settings, session=session)
    await asyncio.to_thread(highlight.warm)
    # Imported objects live as long as the program; freeze them, or a full collection over them would delay a key.
    gc.freeze()
    return agent
