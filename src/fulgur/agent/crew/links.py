"""Connections that several subagents share: one warm socket per provider, one lane per subagent."""

from __future__ import annotations

import asyncio
from typing import Any

from fulgur.agent.route.models import ModelLink
from fulgur.client.connection import Connection, Lane
from fulgur.config.settings import Provider, Settings


class Links:
    """`first` is a link whose connection is reused but not closed here."""

    def __init__(self, first: ModelLink | None = None) -> None:
        self._open: dict[Provider, ModelLink] = {}
        self._borrowed = first.settings.provider if first is not None else None
        if first is not None and isinstance(first.connection, Connection):
            self._open[first.settings.provider] = first
        self._lanes: set[int] = set()
        self._opening = asyncio.Lock()

    async def lane(self, settings: Settings, more: dict[str, Any]) -> tuple[ModelLink, int]:
        """Return a link to the settings' model in a separate lane, and the lane's number for `free`."""
        provider = settings.provider
        async with self._opening:  # two that start at once share one connection too
            base = self._open.get(provider)
            if base is None or base.connection.closed:
                base = await ModelLink.open(settings)
                if not base.connection.is_fulgur:
                    return base, 0  # only Fulgur servers have lanes: elsewhere each subagent gets its own connection
                self._open[provider] = base
                self._borrowed = None if provider == self._borrowed else self._borrowed
        assert isinstance(base.connection, Connection)
        number = next(n for n in range(1, len(self._lanes) + 2) if n not in self._lanes)
        self._lanes.add(number)
        try:
            link = await base.beside(settings)
        except BaseException:
            self.free(number)
            raise
        link.connection = Lane(base.connection, f"crew-{number}", more)
        return link, number

    def free(self, number: int) -> None:
        """Release a lane."""
        self._lanes.discard(number)

    async def close(self) -> None:
        """Close the connections that were opened here."""
        for provider, link in self._open.items():
            if provider != self._borrowed:
                await link.connection.close()
        self._open.clear()
