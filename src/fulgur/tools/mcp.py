"""Tools of MCP servers, through the official SDK (the extra `mcp`).

Each server gets a separate task, because its connection must be closed in the task that opened it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

from fulgur.config.settings import McpServer
from fulgur.errors import FulgurError
from fulgur.sandbox import start
from fulgur.tools.base import Report, Tool, ToolResult
from fulgur.tools.output import BoundedOutput
from fulgur.workspace import folders

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64  # the longest that model APIs accept


class McpTools:
    """Starts the configured servers and offers their tools as `SERVER__TOOL`."""

    def __init__(self) -> None:
        self.tools: list[Tool[Any]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._end = asyncio.Event()

    async def start(self, servers: list[McpServer]) -> list[str]:
        """Start them in parallel; return one warning for each that did not come up."""
        if not servers:
            return []
        try:
            import mcp  # noqa: F401
        except ImportError:
            return [
                "mcp_servers are set, but the MCP SDK is not installed (in Fulgur's checkout: pip install -e '.[mcp]')"
            ]
        # The SDK logs a traceback for each line that is not protocol; without a handler these go to stderr.
        logging.getLogger("mcp").addHandler(logging.NullHandler())
        return [warning for warning in await asyncio.gather(*(self._start(server) for server in servers)) if warning]

    async def close(self) -> None:
        """End every server."""
        self._end.set()
        for task in self._tasks:
            with contextlib.suppress(Exception, asyncio.CancelledError):
                async with asyncio.timeout(3):
                    await task
        self._tasks = []

    async def _start(self, server: McpServer) -> str:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.get_running_loop().create_task(self._serve(server, ready))
        self._tasks.append(task)
        where = f" (its log: {log_of(server)})" if server.command is not None else ""
        try:
            async with asyncio.timeout(server.startup_seconds):
                await asyncio.shield(ready)
        except TimeoutError:
            task.cancel()
            return f"MCP server {server.name} did not start within {server.startup_seconds:g} s{where}"
        except Exception as error:
            return f"MCP server {server.name} did not start: {_innermost(error)}{where}"
        return ""

    async def _serve(self, server: McpServer, ready: asyncio.Future[None]) -> None:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        target: Any = server.url
        log = contextlib.ExitStack()
        if server.command is not None:
            # The SDK starts the program; resolve a bare name here, so that it never comes from the current folder.
            command = server.command if os.sep in server.command else start.program(server.command) or server.command
            env = {**os.environ, "PATH": os.pathsep.join(start.safe_folders(os.environ.get("PATH", ""))), **server.env}
            # Its stderr goes to a separate file: the screen's stderr is not a real file that a child process could
            # inherit.
            errors = log.enter_context(log_of(server).open("w", encoding="utf-8"))
            target = stdio_client(StdioServerParameters(command=command, args=list(server.args), env=env), errors)
        try:
            async with Client(target) as client:
                page = await client.list_tools()
                found = list(page.tools)
                while page.next_cursor is not None:
                    page = await client.list_tools(cursor=page.next_cursor)
                    found += page.tools
                taken = {tool.name for tool in self.tools}
                new = []
                for tool in found:
                    new.append(_tool(client, server, tool, taken))
                    taken.add(new[-1].name)
                self.tools += new  # all of them, or none of a broken server's
                ready.set_result(None)
                await self._end.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error if isinstance(error, Exception) else RuntimeError("it was stopped"))
            elif not isinstance(error, Exception):
                raise
        finally:
            log.close()


def log_of(server: McpServer) -> Path:
    """The log file for the stderr of a server on this machine."""
    folder = folders.home() / "mcp"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / f"{_NOT_IN_NAMES.sub('_', server.name)}.log"


def _tool(client: Any, server: McpServer, described: Any, taken: Collection[str]) -> Tool[Any]:
    whole = f"{server.name}__{described.name}"
    name = _NOT_IN_NAMES.sub("_", whole)
    if len(name) > _LONGEST_NAME or name in taken:  # truncated alone, it could clash with another tool
        name = f"{name[: _LONGEST_NAME - 9]}_{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
    return Tool(
        name,
        described.description or described.title or described.name,
        dict,  # type: ignore[arg-type]
        _runner(client, server, described.name),
        lambda arguments: f"{server.name}: {described.name}",
        mutates=True,
        schema=described.input_schema,
    )


def _runner(client: Any, server: McpServer, name: str) -> Callable[[dict[str, Any], Report], Awaitable[ToolResult]]:
    async def run(arguments: dict[str, Any], report: Report) -> ToolResult:
        try:
            async with asyncio.timeout(server.tool_seconds):
                result = await client.call_tool(name, arguments)
        except TimeoutError:
            raise FulgurError(f"{server.name} did not answer within {server.tool_seconds:g} s") from None
        except Exception as error:
            raise FulgurError(f"{server.name}: {_innermost(error)}") from None
        output = BoundedOutput()
        parts = [_text(part) for part in result.content]
        if not parts and result.structured_content is not None:
            parts = [json.dumps(result.structured_content, ensure_ascii=False)]
        output.feed("\n".join(parts).encode())
        return ToolResult(not result.is_error, output.text() or "[no output]")

    return run


def _text(part: Any) -> str:
    """Put a part of a result into words: its text, an embedded file's text, or the kind of part."""
    if part.type == "resource_link":
        return f"[resource {part.uri}]"
    text = getattr(getattr(part, "resource", part), "text", None)
    return f"[{part.type}]" if text is None else str(text)


def _innermost(error: BaseException) -> str:
    """The first real cause in an exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
