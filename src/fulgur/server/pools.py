"""Limits shared by models: how many answers at once, how many requests and tokens a minute."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

from fulgur.protocol.errors import ApiError
from fulgur.server.config import Pool


class PoolState:
    """One pool; slots are given in the order they were asked for."""

    def __init__(self, name: str, limits: Pool) -> None:
        self.name = name
        self.limits = limits
        self._slots = asyncio.Semaphore(limits.concurrent) if limits.concurrent else None
        self._spent: deque[tuple[float, int]] = deque()  # (when, tokens) of the last minute

    def full(self) -> bool:
        return self._slots is not None and self._slots.locked()

    async def enter(self) -> None:
        """Wait for a slot."""
        if self._slots is not None:
            await self._slots.acquire()

    def leave(self, tokens: int) -> None:
        if self._slots is not None:
            self._slots.release()
        if self._spent and tokens:
            when, _ = self._spent[-1]
            self._spent[-1] = (when, self._spent[-1][1] + tokens)

    def admit(self) -> None:
        """Count a request; a 429 with the time to wait when the minute is used up."""
        limits = self.limits
        if not limits.requests_per_minute and not limits.tokens_per_minute:
            return
        now = self._forget_old()
        tokens = sum(spent for _, spent in self._spent)
        over_requests = limits.requests_per_minute and len(self._spent) >= limits.requests_per_minute
        over_tokens = limits.tokens_per_minute and tokens >= limits.tokens_per_minute
        if over_requests or over_tokens:
            wait = max(0.1, self._spent[0][0] + 60 - now)
            what = "requests" if over_requests else "tokens"
            raise ApiError(
                429,
                "rate_limit_exceeded",
                f"The pool '{self.name}' has used its {what} of this minute. Please try again in {wait:.1f}s.",
                type="rate_limit_error",
                headers={"retry-after": str(int(wait + 0.999)), "retry-after-ms": str(int(wait * 1000))},
            )
        self._spent.append((now, 0))

    def rate_limits(self) -> dict[str, Any] | None:
        """For Codex's meter; None when there is no limit to show."""
        limits = self.limits
        if not limits.requests_per_minute and not limits.tokens_per_minute:
            return None
        self._forget_old()
        used = 0.0
        if limits.requests_per_minute:
            used = len(self._spent) / limits.requests_per_minute
        if limits.tokens_per_minute:
            used = max(used, sum(spent for _, spent in self._spent) / limits.tokens_per_minute)
        primary = {"used_percent": round(min(100.0, used * 100), 1), "window_minutes": 1}
        return {"primary": {**primary, "reset_at": int(time.time()) + 60}}

    def _forget_old(self) -> float:
        now = time.monotonic()
        while self._spent and self._spent[0][0] <= now - 60:
            self._spent.popleft()
        return now
