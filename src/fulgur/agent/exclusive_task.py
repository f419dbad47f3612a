"""What a session is busy with: one thing at a time, a turn or other work that must not overlap with one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fulgur.errors import FulgurError

T = TypeVar("T")


class ExclusiveTask:
    """`after` is called when work other than a turn has ended and nothing else has begun."""

    def __init__(self, after: Callable[[], None]) -> None:
        self._after = after
        self._task: asyncio.Task[Any] | None = None
        self._cancels = False  # whether `cancel` may end the current task

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a turn."""
        self._task = asyncio.get_running_loop().create_task(work)

    def must_be_idle(self, what: str) -> None:
        """Raise FulgurError while something runs."""
        if self.running:
            raise FulgurError(f"cannot {what} while a turn runs", hint="Esc stops it.")

    async def alone(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        """Run work that must not overlap with a turn; prompts that arrive meanwhile are queued and start after it."""
        try:
            self.must_be_idle(what)
        except FulgurError:
            work.close()
            raise
        task = self._task = asyncio.get_running_loop().create_task(work)
        try:
            return await task
        finally:
            if self._task is task and task.done():
                self._after()

    async def cancellable(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        """Like `alone`, for work that `cancel` may end."""
        self._cancels = True
        try:
            return await self.alone(what, work)
        finally:
            self._cancels = False

    async def stoppable(self, what: str, work: Coroutine[Any, Any, T], stopped: str) -> T:
        """Like `cancellable`; raise FulgurError(`stopped`) if the work was cancelled."""
        try:
            return await self.cancellable(what, work)
        except asyncio.CancelledError:
            if self._task is None or not self._task.cancelled():
                raise
            raise FulgurError(stopped) from None

    def cancel(self, *, force: bool = False) -> None:
        """Cancel the current work if it may be cancelled, or in any case if `force`."""
        if self._task is not None and (self._cancels or force):
            self._task.cancel()

    async def wait(self) -> None:
        """Wait until nothing runs."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
