"""One session between an editor and the host: prompts that wait for the end of their turn, and questions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fulgur.client.host import Followed, HostClient
from fulgur.client.rpc import ConnectionLost, Peer
from fulgur.errors import FulgurError
from fulgur.protocol import agent as events
from fulgur.protocol import rpc
from fulgur.protocol.host import Attached
from fulgur.protocol.session import Status
from fulgur.ui.acp.updates import Update, Updates, plan, replay, said, text_block
from fulgur.ui.foreign import exact

DECISIONS = {"allow": "once", "always": "always", "deny": "deny"}


@dataclass
class _Prompt:
    text: str
    sent: bool = False
    """The host has it."""
    taken: bool = False
    """A turn has begun with it, or was redirected by it."""
    done: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class AcpSession:
    """`start` begins to forward events; before that the editor may not know the session."""

    def __init__(
        self,
        editor: Peer,
        host: HostClient,
        attached: Attached,
        following: AsyncIterator[Followed],
        again: dict[str, Any],
    ) -> None:
        """`again`: the parameters that reopen the session after it was closed elsewhere."""
        self.id = attached.session
        self._editor = editor
        self._host = host
        self._following = following
        self._again = again
        self._opening = asyncio.Lock()
        self._updates = Updates(attached.status.workspace)
        self._waiting: list[_Prompt] = []
        self._questions: dict[str, asyncio.Task[None]] = {}
        self._known_calls: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._usage: dict[str, Any] = {}
        self.attached = attached
        self.running = attached.status.running

    def start(self) -> None:
        """Forward events from now on."""
        self._task = asyncio.create_task(self._run())

    async def replay(self) -> None:
        """Send the conversation so far, for an editor that loads the session."""
        for update in replay(self.attached.transcript):
            await self.tell(update)
        if self.attached.partial:
            await self.tell(said(self.attached.partial))
        if self.attached.plan:
            await self.tell(plan(self.attached.plan))

    async def prompt(self, text: str, how: str = "steer") -> dict[str, Any]:
        """Send a prompt and wait for the end of the turn that takes it; a running turn is redirected."""
        await self._live()
        waiting = _Prompt(text)
        self._waiting.append(waiting)
        try:
            outcome = (await self._host.submit(self.id, text, how)).outcome
            waiting.sent = True
            if outcome != "started":
                await self._settle_left()  # its turn may be over already
            reason = await waiting.done
        except asyncio.CancelledError:
            if not await self._withdraw(waiting):
                await self.stop()
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        return {"stopReason": reason, **self._usage}

    async def steer(self, text: str) -> str:
        """Redirect the running turn without waiting for its end; return the outcome."""
        await self._live()
        return (await self._host.submit(self.id, text)).outcome

    async def _live(self) -> None:
        """Reopen a session that was closed elsewhere: a caller that starts a turn must hear of its end."""
        if self._task is None or not self._task.done():
            return
        async with self._opening:
            if self._task.done():
                self.attached, self._following = await self._host.attach("session.open", **self._again)
                await self._host.offer_buffers_again(self.id)
                self.running = self.attached.status.running
                self.start()

    async def stop(self) -> None:
        """Stop the turn. Every waiting prompt is answered as cancelled once it has ended; queued ones never start."""
        meant = [*self._waiting]  # not prompts sent while this one runs
        await self._host.tell("turn.stop", session=self.id)
        for waiting in meant:
            await self._withdraw(waiting)
        await self._settle_left()  # in case nothing ran

    async def _withdraw(self, waiting: _Prompt) -> bool:
        """Take back a prompt that no turn has begun with; return whether that worked."""
        if not waiting.sent or waiting.taken:
            return False
        done = await self._host.call("turn.withdraw", bool, session=self.id, text=waiting.text)
        if done:
            self._finish(waiting, "cancelled")
        return done

    async def close(self) -> None:
        """Detach the editor; the session goes on in the host."""
        for task in [*self._questions.values(), *([self._task] if self._task else [])]:
            task.cancel()
        for waiting in [*self._waiting]:
            self._finish(waiting, "cancelled")
        with contextlib.suppress(FulgurError):
            await self._host.tell("session.detach", session=self.id)

    async def tell(self, update: Update) -> None:
        await self._editor.notify("session/update", {"sessionId": self.id, "update": update})

    # ---- events ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            for asked in self.attached.waiting:
                self._ask(asked)
            async for event in self._following:
                if isinstance(event, Attached):
                    await self._restart(event)
                else:
                    await self._on(event)
        except (ConnectionError, OSError, ConnectionLost):
            return  # the editor is gone
        for waiting in [*self._waiting]:
            self._finish(waiting, "cancelled")

    async def _on(self, event: events.AgentEvent) -> None:
        if isinstance(event, events.TurnStarted | events.TurnSteered):
            self.running = True
            mine = next((p for p in self._waiting if p.text == event.text and not p.taken), None)
            if mine is not None:
                mine.taken = True
            else:  # typed elsewhere: show it in this editor too
                await self.tell(said(event.text, "user_message_chunk"))
        elif isinstance(event, events.ToolStarted):
            self._known_calls.add(event.call_id)
        elif isinstance(event, events.ApprovalSettled):
            if (task := self._questions.pop(event.approval_id, None)) is not None:
                task.cancel()  # answered elsewhere
        elif isinstance(event, events.UsageReported):
            tokens = {"inputTokens": event.input_tokens, "outputTokens": event.output_tokens}
            total = event.input_tokens + event.output_tokens
            self._usage = {"usage": {**tokens, "totalTokens": total, "cachedReadTokens": event.cached_tokens}}
        for update in self._updates.of(event):
            await self.tell(update)
        if isinstance(event, events.ApprovalAsked):
            self._ask(event)
        elif isinstance(event, events.TURN_ENDS):
            self._end(event)

    def _end(self, event: events.AgentEvent) -> None:
        self.running = False
        for waiting in [*self._waiting]:
            if not waiting.taken:
                continue  # for a later turn, or for none
            if isinstance(event, events.TurnFailed):
                self._fail(waiting, event.message, event.hint)
            else:
                self._finish(waiting, "cancelled" if isinstance(event, events.TurnStopped) else "end_turn")
        if self._waiting:
            task = asyncio.create_task(self._settle_left())
            self._questions[f"left-{id(task)}"] = task
            task.add_done_callback(lambda done: self._questions.pop(f"left-{id(done)}", None))

    async def _settle_left(self) -> None:
        """Cancel prompts that wait for a turn that will never come."""
        left = [waiting for waiting in self._waiting if waiting.sent and not waiting.taken]
        if not left:
            return
        status = await self._host.call("session.status", Status, session=self.id)
        if status.running:
            return
        for waiting in left:
            if not waiting.taken:
                self._finish(waiting, "cancelled")

    async def _restart(self, attached: Attached) -> None:
        """Resynchronise after events were missed or the host was restarted."""
        self.attached = attached
        await self.tell(said("\n[some events were missed; this is the session as it is now]\n\n"))
        await self.replay()
        for asked in attached.waiting:
            if asked.approval_id not in self._questions:
                self._ask(asked)
        self.running = attached.status.running
        if not self.running:
            for waiting in [*self._waiting]:
                self._fail(waiting, "the host of agents was restarted during this turn", "Send it again.")

    def _finish(self, waiting: _Prompt, reason: str) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        if not waiting.done.done():
            waiting.done.set_result(reason)

    def _fail(self, waiting: _Prompt, message: str, hint: str) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        if not waiting.done.done():
            waiting.done.set_exception(rpc.RpcError(rpc.FAILED, message, hint))

    # ---- files ----------------------------------------------------------------------------------------------

    async def read(self, path: str) -> str | None:
        """Read a file as the editor shows it, unsaved changes included."""
        answer = await self._editor.request("fs/read_text_file", {"sessionId": self.id, "path": path}, dict[str, Any])
        text = answer.get("content")
        return text if isinstance(text, str) else None

    async def write(self, path: str, text: str) -> bool:
        """Write through the editor, which builds its review of changes from this."""
        params = {"sessionId": self.id, "path": path, "content": text}
        await self._editor.request("fs/write_text_file", params, object)
        return True

    # ---- questions ------------------------------------------------------------------------------------------

    def _ask(self, asked: events.ApprovalAsked) -> None:
        self._questions[asked.approval_id] = asyncio.create_task(self._asked(asked))

    async def _asked(self, asked: events.ApprovalAsked) -> None:
        call = asked.call_id or f"approval-{asked.approval_id}"
        title = exact(asked.title)
        content = [{"type": "content", "content": text_block(f"{title}\n\n{asked.reason}")}]
        if asked.diff:
            content.append({"type": "content", "content": text_block(f"```diff\n{asked.diff}\n```")})
        options = [{"optionId": "allow", "name": "Allow", "kind": "allow_once"}]
        if asked.prefix:
            covers = exact(" ".join(asked.prefix))
            options.append({"optionId": "always", "name": f"Always allow {covers}", "kind": "allow_always"})
        options.append({"optionId": "deny", "name": "Deny", "kind": "reject_once"})
        tool = {"toolCallId": call, "title": title, "status": "pending", "content": content, "kind": "other"}
        try:
            if call not in self._known_calls:
                await self.tell({"sessionUpdate": "tool_call", **tool})
            params = {"sessionId": self.id, "toolCall": tool, "options": options}
            answer = await self._editor.request("session/request_permission", params, dict[str, Any])
            outcome = answer.get("outcome") or {}
            chosen = outcome.get("optionId") if outcome.get("outcome") == "selected" else None
            decision = "stop" if chosen is None else DECISIONS.get(str(chosen), "deny")
        except (rpc.RpcError, ConnectionLost, msgspec.ValidationError, AttributeError):
            decision = "deny"  # also for an answer that makes no sense
        self._questions.pop(asked.approval_id, None)
        with contextlib.suppress(FulgurError):
            params = {"session": self.id, "approval": asked.approval_id, "decision": decision}
            await self._host.tell("approval.answer", **params)
