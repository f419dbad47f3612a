"""The Agent Client Protocol on one connection: the editor on one side, the host of agents on the other."""

from __future__ import annotations

import asyncio
import importlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fulgur import __version__
from fulgur.client.rpc import Methods, Peer, Send, Then, dispatch
from fulgur.errors import FulgurError
from fulgur.protocol import rpc
from fulgur.protocol.host import SessionInfo
from fulgur.protocol.session import Status
from fulgur.ui.acp import wire
from fulgur.ui.acp.images import Images
from fulgur.ui.acp.options import COMMANDS, MODES, config_options, mode_of, mode_state

if TYPE_CHECKING:
    from fulgur.client.host import HostClient
    from fulgur.ui.acp.session import AcpSession

_PAGE = 50


class AcpAgent:
    """`peer.run` serves the editor; call `close` when it has gone."""

    def __init__(
        self,
        home: Path,
        send: Send,
        overrides: list[str],
        model: str | None,
        profile: str | None,
        *,
        starts: bool = True,
    ) -> None:
        """With `starts` False a host must already be running."""
        self._home = home
        self._starts = starts
        self._given = {"overrides": overrides, "model": model, "profile": profile}
        self.peer = Peer(send, self._handle)
        self._sessions: dict[str, AcpSession] = {}
        self._host: HostClient | None = None
        self._connecting = asyncio.Lock()
        self._models: list[str] = []
        self._files: wire.FileSystem | None = None
        self._images = Images()
        self._methods: Methods = {
            "initialize": (wire.Initialize, self._initialize),
            "authenticate": (wire.Params, self._nothing),
            "session/new": (wire.NewSession, self._new),
            "session/load": (wire.OldSession, self._load),
            "session/resume": (wire.OldSession, self._resume),
            "session/fork": (wire.OldSession, self._fork),
            "session/list": (wire.ListSessions, self._list),
            "session/close": (wire.Session, self._close_session),
            "session/delete": (wire.Session, self._delete),
            "session/prompt": (wire.Prompt, self._prompt),
            "session/cancel": (wire.Session, self._cancel),
            "session/set_config_option": (wire.SetOption, self._set_option),
            "session/set_mode": (wire.SetMode, self._set_mode),
            "_session/steering": (wire.Prompt, self._steering),
        }

    async def close(self) -> None:
        """Clean up after the editor has gone; its sessions go on in the host."""
        for session in [*self._sessions.values()]:
            await session.close()
        self._images.close()
        if self._host is not None:
            await self._host.close()

    async def _handle(self, method: str, params: msgspec.Raw) -> Any:
        return await dispatch(self._methods, method, params)

    async def _initialize(self, asked: wire.Initialize) -> dict[str, Any]:
        self._files = asked.client_capabilities.fs if asked.client_capabilities is not None else None
        # Load what a session needs while the editor reads this answer.
        self._warming = asyncio.create_task(self._connect())
        self._warming.add_done_callback(lambda task: task.cancelled() or task.exception())
        steering = {"steering": {"supported": True}}
        return {
            "protocolVersion": wire.VERSION,
            "agentInfo": {"name": "fulgur", "title": "Fulgur", "version": __version__},
            "authMethods": [],
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
                "mcpCapabilities": {"http": True, "sse": False},
                "sessionCapabilities": {"list": {}, "delete": {}, "resume": {}, "close": {}, "fork": {}},
                "_meta": steering,
            },
            "_meta": steering,
        }

    async def _nothing(self, asked: wire.Params) -> dict[str, Any]:
        return {}

    async def _connect(self) -> HostClient:
        async with self._connecting:
            if self._host is None:
                module = await asyncio.to_thread(importlib.import_module, "fulgur.client.host")
                self._host = await module.HostClient(self._home, starts=self._starts).open()
        assert self._host is not None
        return self._host

    # ---- sessions -------------------------------------------------------------------------------------------

    async def _open(self, asked: wire.NewSession | wire.OldSession, **which: Any) -> AcpSession:
        from fulgur.ui.acp.session import AcpSession

        host = await self._connect()
        params = {**self._given, "workspace": asked.cwd, **which}
        params["overrides"] = [*(self._given["overrides"] or []), *wire.mcp_overrides(asked.mcp_servers)]
        attached, following = await host.attach("session.open", **params)
        if (old := self._sessions.pop(attached.session, None)) is not None:
            await old.close()
            attached, following = await host.attach(session=attached.session)
        again = {**params, "session": attached.session, "fork": None}
        session = AcpSession(self.peer, host, attached, following, again)
        self._sessions[session.id] = session
        if self._files is not None and (self._files.read_text_file or self._files.write_text_file):
            reads, writes = self._files.read_text_file, self._files.write_text_file
            await host.offer_buffers(session.id, session, reads=reads, writes=writes)
        return session

    async def _described(self, session: AcpSession, status: Status) -> dict[str, Any]:
        """Modes and options, which every response that returns a session must include: without them the pickers
        vanish."""
        host = await self._connect()
        try:
            self._models = await host.call("session.models", list[str], session=session.id)
        except FulgurError:
            self._models = [status.model]
        return {"modes": mode_state(status), "configOptions": config_options(status, self._models)}

    def _begun(self, session: AcpSession, answer: dict[str, Any]) -> Then:
        """Send the response before the session's events: some editors hang if events come first."""

        async def begin() -> None:
            await session.tell({"sessionUpdate": "available_commands_update", "availableCommands": COMMANDS})
            session.start()

        return Then(answer, begin)

    async def _new(self, asked: wire.NewSession) -> Then:
        session = await self._open(asked)
        described = await self._described(session, session.attached.status)
        return self._begun(session, {"sessionId": session.id, **described})

    async def _load(self, asked: wire.OldSession) -> Then:
        session = await self._open(asked, session=asked.session_id)
        await session.replay()
        return self._begun(session, await self._described(session, session.attached.status))

    async def _resume(self, asked: wire.OldSession) -> Then:
        session = await self._open(asked, session=asked.session_id)
        return self._begun(session, await self._described(session, session.attached.status))

    async def _fork(self, asked: wire.OldSession) -> Then:
        session = await self._open(asked, fork=asked.session_id)
        described = await self._described(session, session.attached.status)
        return self._begun(session, {"sessionId": session.id, **described})

    async def _list(self, asked: wire.ListSessions) -> dict[str, Any]:
        host = await self._connect()
        found = await host.call("session.list", list[SessionInfo], workspace=asked.cwd)
        start = int(asked.cursor) if asked.cursor and asked.cursor.isdigit() else 0
        shown = [info for info in found if info.turns or info.live][start:]
        rows = [
            {
                "sessionId": info.session,
                "cwd": info.workspace,
                "title": " ".join(info.title.split())[:80] or "new session",
                "updatedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(info.updated)),
            }
            for info in shown[:_PAGE]
        ]
        return {"sessions": rows, **({"nextCursor": str(start + _PAGE)} if len(shown) > _PAGE else {})}

    async def _close_session(self, asked: wire.Session) -> dict[str, Any]:
        session = self._sessions.pop(asked.session_id, None)
        if session is not None:
            await session.stop()
            await session.close()
        await (await self._connect()).tell("session.close", session=asked.session_id)
        return {}

    async def _delete(self, asked: wire.Session) -> dict[str, Any]:
        await self._close_session(asked)
        await (await self._connect()).tell("session.delete", session=asked.session_id)
        return {}

    # ---- turns ----------------------------------------------------------------------------------------------

    def _session(self, name: str) -> AcpSession:
        session = self._sessions.get(name)
        if session is None:
            raise rpc.RpcError(rpc.INVALID_PARAMS, f"no session {name!r} is open here; load it first")
        return session

    async def _prompt(self, asked: wire.Prompt) -> dict[str, Any]:
        session, text = self._session(asked.session_id), wire.prompt_text(asked.prompt, self._images)
        command, _, argument = text.partition(" ")
        if command in ("/steer", "/queue") and argument.strip():
            return await session.prompt(argument.strip(), "queue" if command == "/queue" else "steer")
        if command.startswith("/") and command[1:] in {known["name"] for known in COMMANDS}:
            await self._command(session, command)
            return {"stopReason": "end_turn"}
        return await session.prompt(text)

    async def _command(self, session: AcpSession, name: str) -> None:
        from fulgur.ui.acp.updates import said

        host = await self._connect()
        match name:
            case "/undo":
                await host.tell("session.undo", session=session.id)
            case "/compact":
                await host.tell("session.compact", session=session.id)
                await session.tell(said("compacted"))
            case "/diff":
                diff = await host.call("session.diff", str, session=session.id)
                await session.tell(said(f"```diff\n{diff}\n```" if diff.strip() else "no file was changed"))
            case "/status":
                status = await host.call("session.status", Status, session=session.id)
                lines = [f"model: {status.answering_model or status.model}", f"way: {status.way_reason}"]
                lines += [f"context: {status.context_used:,} of {status.context_limit:,} tokens"]
                lines += [f"sandbox: {status.sandbox}", f"approvals: {status.approval_policy}"]
                await session.tell(said("  \n".join(lines)))
            case _:
                raise rpc.RpcError(rpc.INVALID_PARAMS, f"{name} needs text after it")

    async def _cancel(self, asked: wire.Session) -> None:
        if (session := self._sessions.get(asked.session_id)) is not None:
            await session.stop()

    async def _steering(self, asked: wire.Prompt) -> dict[str, Any]:
        """Redirect the running turn. If none runs, start one without waiting for it, or report that a prompt is
        required."""
        session, text = self._session(asked.session_id), wire.prompt_text(asked.prompt, self._images)
        steering = (asked.meta or {}).get("steering")
        wish = asked.idle_behavior or (steering.get("idleBehavior", "") if isinstance(steering, dict) else "")
        if wish == "promptRequired" and not session.running:
            return {"outcome": "promptRequired"}
        outcome = await session.steer(text)
        return {"outcome": "startedNewTurn" if outcome == "started" else "injected"}

    # ---- options --------------------------------------------------------------------------------------------

    async def _set_option(self, asked: wire.SetOption) -> dict[str, Any]:
        session, host = self._session(asked.session_id), await self._connect()
        if asked.config_id == "model":
            status = await host.call("session.model", Status, session=session.id, model=str(asked.value))
        elif asked.config_id == "mode":
            status = await self._change_mode(session, str(asked.value))
        else:
            raise rpc.RpcError(rpc.INVALID_PARAMS, f"there is no option {asked.config_id!r}")
        return {"configOptions": config_options(status, self._models)}

    async def _set_mode(self, asked: wire.SetMode) -> dict[str, Any]:
        session = self._session(asked.session_id)
        status = await self._change_mode(session, asked.mode_id)
        options = config_options(status, self._models)
        await session.tell({"sessionUpdate": "config_option_update", "configOptions": options})
        return {}

    async def _change_mode(self, session: AcpSession, name: str) -> Status:
        mode = next((mode for mode in MODES if mode.id == name), None)
        if mode is None:
            raise rpc.RpcError(rpc.INVALID_PARAMS, f"there is no mode {name!r}")
        host = await self._connect()
        status = await host.call("session.set", Status, session=session.id, overrides=list(mode.overrides))
        await session.tell({"sessionUpdate": "current_mode_update", "currentModeId": mode_of(status)})
        return status
