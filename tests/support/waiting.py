"""How tests wait: for a condition, never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE = 120.0
"""Seconds that a test waits for what must come. Only what hangs takes so long."""


async def until(condition: Callable[[], object], pause: float = 0.005) -> None:
    """Wait for a condition, while the event loop goes on."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(pause)


def wait_until(condition: Callable[[], object], pause: float = 0.01) -> None:
    """The same where no event loop runs."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE:g} s"
        time.sleep(pause)
