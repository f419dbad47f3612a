"""One turn from the prompt to its end on disk, whichever way it is worked."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from typing import TYPE_CHECKING, Any

from fulgur.agent.loop.approvals import Approvals
from fulgur.agent.loop.calls import Calls, StopTurn
from fulgur.agent.loop.context import TurnContext
from fulgur.agent.loop.guards import Guards
from fulgur.agent.loop.loop import ToolLoop
from fulgur.agent.session.changes import Changes
from fulgur.agent.session.history import STOPPED_OUTPUT, call_output, item_text
from fulgur.agent.workbench import Workbench
from fulgur.errors import FulgurError
from fulgur.protocol.agent import TurnDone, TurnFailed, TurnStarted, TurnStopped, Warned, Way
from fulgur.tools.base import Tool

if TYPE_CHECKING:
    from fulgur.agent.loop.edit_path import EditPath


class Turn:
    """Runs once."""

    def __init__(
        self,
        context: TurnContext,
        bench: Workbench,
        changes: Changes,
        approvals: Approvals,
        tools: list[Tool[Any]],
        way: Way,
        reason: str,
        format: dict[str, Any] | None,
    ) -> None:
        self._context = context
        self._changes = changes
        self._way, self._reason = way, reason
        self._task: asyncio.Task[None] | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._stopping = False
        self._calls = Calls(
            tools, bench.shell, bench.files, approvals, context.emit, self._before_change, context.state.changed
        )
        self._guards = Guards(context, bench)
        self._loop: ToolLoop | EditPath
        if way == "edit":
            from fulgur.agent.loop.edit_path import (
                EditPath,  # loads the refactoring engine, which the tool loop never needs
            )

            self._loop = EditPath(context, bench.files, self._calls, self._guards, context.state.recent_files())
        else:
            self._loop = ToolLoop(context, self._calls, self._check, format)

    async def run(self, text: str) -> bool:
        """Work the prompt to its end; True when what is queued must wait: it was stopped, or could not be saved.

        Whatever happens, exactly one of the events that end a turn follows.
        """
        context, state = self._context, self._context.state
        try:
            state.begin_turn(text)
        except FulgurError as error:
            context.emit(TurnFailed(turn=context.turn, message=error.message, hint=error.hint or ""))
            return True
        how, problem, saved = "done", FulgurError(""), True
        try:
            if self._way != "chat":
                await asyncio.to_thread(self._guards.warm)
            context.emit(TurnStarted(turn=context.turn, text=text, way=self._way, reason=self._reason))
            self._task = asyncio.get_running_loop().create_task(self._loop.run())
            await self._task
            how = "stopped" if self._stopping else "done"
        except (StopTurn, asyncio.CancelledError):
            how = "stopped"
        except FulgurError as error:
            how, problem = ("stopped", problem) if self._stopping else ("failed", error)
        except Exception as error:
            how, problem = "failed", self._unexpected(error)
        try:
            state.save_partial_as_message()
            state.add_items([call_output(str(c["call_id"]), STOPPED_OUTPUT) for c in state.history.open_calls()])
            await self._after()
            await asyncio.to_thread(state.end_turn, how, problem.message)
        except Exception as error:
            how, saved = "failed", False
            problem = error if isinstance(error, FulgurError) else self._unexpected(error)
            state.turn.ended = how
        said = self._last_said()
        if how == "done":
            context.emit(TurnDone(turn=context.turn, text=said))
        elif how == "stopped":
            context.emit(TurnStopped(turn=context.turn, text=said))
        else:
            context.emit(TurnFailed(turn=context.turn, message=problem.message, hint=problem.hint or "", text=said))
        return how == "stopped" or not saved

    def steer(self, text: str) -> None:
        """Redirect it; what no answer takes up any more is in `unsaid`."""
        self._loop.steer(text)

    def stop(self) -> None:
        """End it and keep what was said."""
        self._stopping = True
        self._stop_task = asyncio.get_running_loop().create_task(self._stop())

    async def _stop(self) -> None:
        if not await self._loop.stop() and self._task is not None:
            self._task.cancel()

    async def compact(self) -> None:
        """Compact outside of a turn."""
        await self._loop.summarise()

    @property
    def unsaid(self) -> list[str]:
        """Steers that were not taken up."""
        return self._loop.unsaid

    async def _before_change(self) -> None:
        for text in await self._changes.before():
            self._context.emit(Warned(message=f"not covered by undo: {text}"))

    async def _after(self) -> None:
        try:
            await self._changes.after()
        except (FulgurError, OSError) as error:
            self._context.emit(Warned(message=f"undo may not cover this turn: {error}"))

    async def _check(self) -> str:
        return await self._guards.check(self._calls.changed)

    def _last_said(self) -> str:
        """What the model said last in this turn."""
        for item in reversed(self._context.state.history.everything()):
            if item.get("type") == "message" and item.get("role") == "assistant":
                return item_text(item)
            if item.get("type") == "message" and item_text(item) == self._context.state.turn.text:
                break
        return ""

    def _unexpected(self, error: Exception) -> FulgurError:
        """A mistake of ours: the turn fails, the session lives, and the trace is kept for a report."""
        log = self._context.settings.home / "errors.log"
        with contextlib.suppress(OSError), open(log, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write("".join(traceback.format_exception(error)))
        return FulgurError(f"unexpected {type(error).__name__}: {error}", hint=f"The trace is in {log}.")
