"""An editor, made of the protocol's official SDK, on `fulgur acp`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from acp.client.connection import ClientSideConnection
from acp.schema import (
    AllowedOutcome,
    DeniedOutcome,
    ReadTextFileResponse,
    RequestPermissionResponse,
    TextContentBlock,
)

from fulgur.ui.acp.agent import AcpAgent
from fulgur.ui.commands.acp import lines
from fulgur.workspace import folders


class Editor:
    """Collects updates; answers questions with `answer` (an option's id, or None for cancelled)."""

    def __init__(self) -> None:
        self.updates: list[tuple[str, Any]] = []
        self.asked: list[Any] = []
        self.files: dict[str, str] = {}  # buffers with what is not saved
        self.written: list[str] = []
        self.answer: Callable[[Any], Any] = lambda asked: "allow"
        self._changed = asyncio.Condition()
        self.connection: Any = None

    def on_connect(self, connection: Any) -> None:
        self.connection = connection

    async def session_update(self, session_id: str, update: Any, **more: Any) -> None:
        async with self._changed:
            self.updates.append((session_id, update))
            self._changed.notify_all()

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **more: Any) -> Any:
        self.asked.append((tool_call, options))
        chosen = self.answer(tool_call)
        if asyncio.iscoroutine(chosen):
            chosen = await chosen
        outcome = DeniedOutcome(outcome="cancelled")
        if chosen is not None:
            outcome = AllowedOutcome(outcome="selected", option_id=chosen)
        return RequestPermissionResponse(outcome=outcome)

    async def read_text_file(self, session_id: str, path: str, **more: Any) -> Any:
        return ReadTextFileResponse(content=self.files.get(path, Path(path).read_text()))

    async def write_text_file(self, session_id: str, path: str, content: str, **more: Any) -> None:
        self.files[path] = content
        self.written.append(path)
        Path(path).write_text(content)

    async def until(self, wanted: Callable[[Any], bool]) -> Any:
        async with self._changed:
            while True:
                for _, update in self.updates:
                    if wanted(update):
                        return update
                await self._changed.wait()

    def of(self, kind: str) -> list[Any]:
        return [update for _, update in self.updates if update.session_update == kind]

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(update.content.text for update in self.of(kind))

    async def say(self, session: str, text: str) -> Any:
        return await self.connection.prompt(session_id=session, prompt=[TextContentBlock(type="text", text=text)])


@asynccontextmanager
async def editing(overrides: list[str], **more: Any) -> AsyncIterator[Editor]:
    """An editor that has said hello, over a pair of sockets."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours, limit=64 << 20)

    async def send(data: bytes) -> None:
        writer.write(data + b"\n")
        await writer.drain()

    agent = AcpAgent(folders.home(), send, overrides, None, None, starts=False)
    serving = asyncio.create_task(agent.peer.run(lines(reader)))
    their_reader, their_writer = await asyncio.open_connection(sock=theirs, limit=64 << 20)
    editor = Editor()
    connection = ClientSideConnection(editor, their_writer, their_reader, use_unstable_protocol=True)
    try:
        await connection.initialize(protocol_version=1, **more)
        yield editor
    finally:
        await connection.close()
        their_writer.close()
        await serving
        await agent.close()
        writer.close()
