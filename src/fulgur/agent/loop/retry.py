"""Retries requests that failed through no fault of their own: after a pause, and with a warning."""

from __future__ import annotations

import asyncio

from fulgur.agent.loop.context import TurnContext
from fulgur.errors import FulgurError
from fulgur.protocol.agent import Warned
from fulgur.protocol.errors import ApiError

_SECONDS = (0.5, 2.0, 8.0, 16.0, 30.0, 60.0)
_BUSY = ("rate_limit_exceeded", "server_is_overloaded")
_LASTS = ("model_not_started",)  # our 503: the files are missing, or memory is too small


class Patience:
    """The attempts at one request."""

    def __init__(self, context: TurnContext) -> None:
        self._context = context
        self._delays = iter(_SECONDS[: context.link.settings.provider.retries])
        self._reopened = False

    async def again(self, error: FulgurError, *, begun: bool) -> None:
        """Return when the request may be sent again; raise the error if a retry is useless or was tried often enough.

        `begun`: part of the answer has arrived. Then only a lost connection or a busy server is worth a retry, so that
        nothing is said twice.
        """
        if self._context.link.connection.closed:
            await self._reopen(error)
            return
        delay = next(self._delays, None) if _passes(error, begun) else None
        if delay is None:
            raise error
        self._context.emit(Warned(message=f"request failed ({error.message}); retrying in {delay:g} s"))
        await asyncio.sleep(delay)

    async def _reopen(self, error: FulgurError) -> None:
        """Look for the server once more from scratch, since the client could not restore its connection."""
        if self._reopened:
            raise error
        self._reopened = True
        self._context.emit(Warned(message=f"{error.message}; looking for the server again"))
        await self._context.link.reopen()
        self._context.progress.forget_server()


def _passes(error: FulgurError, begun: bool) -> bool:
    """Whether the error is transient."""
    if not isinstance(error, ApiError) or error.code in _LASTS:
        return False
    return error.code in _BUSY or (not begun and (error.status >= 500 or error.status in (408, 429)))
