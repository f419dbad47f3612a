"""One turn from the prompt to its end on disk, by either loop."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fulgur.agent.loop.approvals import Approvals
from fulgur.agent.loop.calls import Calls, StopTurn
from fulgur.agent.loop.context import TurnContext
from fulgur.agent.loop.guards import Guards
from fulgur.agent.loop.hooks import Hooks
from fulgur.agent.loop.images import images_named, message_of, read_images
from fulgur.agent.loop.loop import ToolLoop
from fulgur.agent.loop.retry import Patience
from fulgur.agent.route.models import ModelLink
from fulgur.agent.route.relay import HandOver, Relay
from fulgur.agent.route.router import route
from fulgur.agent.session.changes import Changes
from fulgur.agent.session.history import HANDED_OVER, HOOK, STOPPED_OUTPUT, call_output, item_text, message
from fulgur.agent.workbench import Workbench
from fulgur.errors import FulgurError
from fulgur.protocol.agent import ImagesSent, RouteCosts, TurnDone, TurnFailed, TurnStarted, TurnStopped, Warned, Way
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
        relay: Relay | None = None,
    ) -> None:
        self._context = context
        self._bench = bench
        self._changes = changes
        self._way, self._reason = way, reason
        self._format = format
        self._relay = relay
        self._task: asyncio.Task[None] | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._stopping = False
        self._overruled = False
        self._hooks = Hooks(context.settings, bench.shell, context.state.log.id, context.emit, context.turn)
        self._calls = Calls(
            tools,
            bench.shell,
            bench.files,
            approvals,
            self._hooks,
            context.emit,
            self._before_change,
            context.state.changed,
            context.state.planned,
        )
        self._guards = Guards(context, bench)
        self._loop = self._make_loop()

    def _make_loop(self) -> ToolLoop | EditPath:
        context = self._context
        if self._way != "edit":
            return ToolLoop(context, self._calls, self._check, self._at_end, self._attach_or_warn, self._format)
        from fulgur.agent.loop.edit_path import EditPath  # loads the refactoring engine, which other ways never need

        return EditPath(context, self._bench.files, self._calls, self._guards, context.state.recent_files())

    async def run(self, text: str) -> bool:
        """Run the turn; True if queued prompts must wait: it was stopped, or could not be saved.

        Whatever happens, exactly one turn-end event follows.
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
            context.link.connection.on_trouble = lambda message: context.emit(Warned(message=message))
            context.emit(TurnStarted(turn=context.turn, text=text, way=self._way, reason=self._reason))
            if self._relay is not None:
                self._relay.begin(context.turn, context.link.info.name)
            await self._attach(text)
            await self._worked()
            how = "stopped" if self._stopping else "done"
        except (StopTurn, asyncio.CancelledError):
            how = "stopped"
        except FulgurError as error:
            how, problem = ("stopped", problem) if self._stopping else ("failed", error)
        except Exception as error:
            how, problem = "failed", self._unexpected(error)
        try:
            self._close_what_is_open()
            await self._after()
            await asyncio.to_thread(state.end_turn, how, problem.message)
        except Exception as error:
            how, saved = "failed", False
            problem = error if isinstance(error, FulgurError) else self._unexpected(error)
            state.turn.ended = how
        if self._relay is not None:
            context.emit(RouteCosts(turn=context.turn, parts=self._relay.costs()))
        said = self._last_said()
        if how == "done":
            context.emit(TurnDone(turn=context.turn, text=said))
        elif how == "stopped":
            context.emit(TurnStopped(turn=context.turn, text=said))
        else:
            context.emit(TurnFailed(turn=context.turn, message=problem.message, hint=problem.hint or "", text=said))
        return how == "stopped" or self._stopping or not saved  # a stop may also come while the turn ends

    async def _at_end(self, again: bool) -> str:
        """What the turn-end hooks still want done; `again`: they were heard once, and that is enough."""
        wanted = await self._hooks.turn_end(self._last_said())
        return f"{HOOK} {wanted}" if wanted and not again else ""

    async def _attach(self, text: str) -> None:
        """Send the images that the prompt names. If the model has no vision, an `@` name is an error and a pasted path
        a warning."""
        named, info = images_named(text), self._context.link.info
        if not named.asked and not named.pasted:
            return
        if "vision" not in info.abilities:
            if named.asked:
                raise FulgurError(
                    f"{info.name} does not take images, so {', '.join(named.asked)} cannot be sent",
                    hint="/model chooses another model. A name without @ is plain text.",
                )
            self._context.emit(Warned(message=f"{info.name} takes no images; sent as text: {', '.join(named.pasted)}"))
            return
        if images := await asyncio.to_thread(read_images, named, self._bench.files):
            self._context.state.add_items([message_of(images)], kind="note")
            self._context.emit(ImagesSent(turn=self._context.turn, names=tuple(image.name for image in images)))

    async def _attach_or_warn(self, text: str) -> None:
        """Send the images that a steer names; one that cannot be sent does not end the turn."""
        try:
            await self._attach(text)
        except FulgurError as error:
            self._context.emit(Warned(message=error.message, hint=error.hint or ""))

    async def _greet(self) -> None:
        """Run the session-start hooks, before the first turn in this process."""
        if self._context.progress.greeted:
            return
        told = await self._hooks.session_start(resumed=self._context.turn > 1)
        self._context.progress.greeted = True
        if told:
            self._context.state.add_items([message("user", f"{HOOK} {told}")], kind="note")

    async def _worked(self) -> None:
        """Run the loop to its end; if another model takes over, run that one's too."""
        while not self._stopping:  # a stop may come before there is anything to cancel
            why, rule = "", "drift"
            self._task = asyncio.get_running_loop().create_task(self._attempted())
            try:
                await self._task
                if self._way == "edit" and not self._calls.changed:
                    why = "it made no edit"
            except HandOver as drift:
                why = str(drift)
            except asyncio.CancelledError:
                if not self._overruled or self._stopping:
                    raise
            except FulgurError as error:
                if self._stopping or self._relay is None or not self._relay.may_escalate:
                    raise
                why, rule = f"it could not: {error.message}", "failed"
            if self._stopping or self._relay is None:
                return
            if self._overruled:
                why, rule = "you chose it", "person"
            elif not why or not self._relay.may_escalate:
                return
            self._overruled = False
            await self._hand_over(self._relay, why, rule)

    async def _attempted(self) -> None:
        """Run the loop. The tool loop retries single requests itself; a rewrite is retried here as a whole."""
        await self._greet()
        patience = Patience(self._context)
        while True:
            try:
                await self._loop.run()
                if self._way == "edit":  # a rewrite gets no second try: hook output is only shown
                    await self._hooks.turn_end(self._last_said())
                return
            except FulgurError as error:
                if self._way != "edit" or self._stopping or self._calls.changed:
                    raise
                await patience.again(error, begun=False)

    async def _hand_over(self, relay: Relay, why: str, rule: str) -> None:
        """Let the other model continue with what was said and done so far."""
        self._close_what_is_open()
        before, unsaid = self._context.link.info.name, self._loop.unsaid
        link = await relay.pass_on(why, rule=rule)
        changed = f" It changed: {', '.join(self._calls.changed)}." if self._calls.changed else ""
        note = f"{HANDED_OVER}, {before}, in the middle of this task ({why}).{changed} Check what is there and go on."
        state = self._context.state
        state.chose_model(link.info.name, link.settings.provider.id)
        state.add_items([message("user", note)])
        self._context.progress.forget_model()
        drift = relay.drift if relay.may_escalate else None
        self._context = replace(self._context, link=link, drift=drift)
        self._way, self._reason = route(link.info, self._context.settings)
        self._loop = self._make_loop()
        for text in unsaid:
            self._loop.steer(text)

    @property
    def link(self) -> ModelLink:
        """The link to the current model."""
        return self._context.link

    def overrule(self) -> None:
        """Give the turn to the other model of `model = "auto"`."""
        if self._relay is not None and not self._overruled:
            self._overruled = True
            self._stop_task = asyncio.get_running_loop().create_task(self._stop())

    def _close_what_is_open(self) -> None:
        state = self._context.state
        state.save_partial_as_message()
        state.add_items([call_output(str(c["call_id"]), STOPPED_OUTPUT) for c in state.history.open_calls()])

    def steer(self, text: str) -> None:
        """Redirect the turn; text that no answer takes up is in `unsaid`."""
        self._loop.steer(text)

    def stop(self) -> None:
        """End the turn and keep what was said."""
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
        """Steers that no answer has taken up."""
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
        """Wrap a bug of ours: the turn fails, the session goes on, and the traceback is logged for a report."""
        log = self._context.settings.home / "errors.log"
        with contextlib.suppress(OSError), open(log, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write("".join(traceback.format_exception(error)))
        return FulgurError(f"unexpected {type(error).__name__}: {error}", hint=f"The trace is in {log}.")
