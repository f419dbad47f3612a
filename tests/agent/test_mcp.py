"""Tools of a real MCP server, through the official SDK."""

import sys
from pathlib import Path

import pytest
from agent_world import agent_on, call, go, say, serving

from fulgur.protocol.agent import ToolFinished, ToolStarted, Warned

pytest.importorskip("mcp")
SERVER = Path(__file__).with_name("mcp_server.py")


def configured(home: Path, extra: str = "") -> None:
    (home / "config.toml").write_text(
        f'[mcp_servers.calc]\ncommand = "{sys.executable}"\nargs = ["{SERVER}"]\nenv = {{GREETING = "hi"}}\n'
        f"startup_timeout_sec = 20\n{extra}"
    )


def test_calls_reach_the_server(home: Path, workspace: Path) -> None:
    configured(home)
    replies = [
        call("calc__add", {"a": 1, "b": 2}, times=1),
        call("calc__broken", {}, times=1),
        call("calc__add", {"a": "x"}, times=1),
        say("ok"),
    ]

    async def main() -> None:
        async with serving(replies) as server, agent_on(server, workspace) as watch:
            await watch.turn("add")
            assert watch.of(ToolStarted)[0].title == "calc: add"
            assert watch.outputs[0] == "3 hi"
            assert [e.ok for e in watch.of(ToolFinished)] == [True, False, False]

    go(main(), 60)


def test_a_server_that_does_not_start_is_named(home: Path, workspace: Path) -> None:
    configured(home, '[mcp_servers.gone]\ncommand = "/nonexistent/program"\n')

    async def main() -> None:
        async with serving([say("ok")]) as server, agent_on(server, workspace) as watch:
            assert (await watch.turn("hi")).text == "ok"
            assert any("MCP server gone did not start" in w.message for w in watch.of(Warned))

    go(main(), 60)
