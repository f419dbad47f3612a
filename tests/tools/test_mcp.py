"""Tools of a real MCP server, through the official SDK."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import agent_on, call, say, serving
from waiting import PATIENCE, wait_until

from fulgur.bench.scripted_server import free_port
from fulgur.config.settings import load_settings
from fulgur.protocol.agent import ApprovalAsked, ToolFinished, ToolStarted, Warned
from fulgur.tools.mcp import McpTools
from fulgur.ui.tui.crash import CapturedStderr

pytest.importorskip("mcp")
SERVER = Path(__file__).with_name("mcp_server.py")


def configured(home: Path, extra: str = "") -> None:
    (home / "config.toml").write_text(
        f'[mcp_servers.calc]\ncommand = "{sys.executable}"\nargs = ["{SERVER}"]\nenv = {{GREETING = "hi"}}\n'
        f"startup_timeout_sec = 20\n{extra}"
    )


async def test_calls_reach_the_server(home: Path, workspace: Path) -> None:
    configured(home)
    replies = [
        call("calc__add", {"a": 1, "b": 2}, times=1),
        call("calc__broken", {}, times=1),
        call("calc__add", {"a": "x"}, times=1),
        call("calc__long", {}, times=1),
        say("ok"),
    ]

    async with serving(replies) as server, agent_on(server, workspace) as watch:
        await watch.turn("add")
        assert watch.of(ToolStarted)[0].title == "calc: add"
        assert watch.outputs[0] == "3 hi"
        assert [e.ok for e in watch.of(ToolFinished)] == [True, False, False, True]
        long = watch.outputs[3]
        assert long.startswith("begin.") and long.endswith(".end") and "characters left out" in long


async def test_a_server_that_does_not_start_is_named(home: Path, workspace: Path) -> None:
    configured(home, '[mcp_servers.gone]\ncommand = "/nonexistent/program"\n')

    async with serving([say("ok")]) as server, agent_on(server, workspace) as watch:
        assert (await watch.turn("hi")).text == "ok"
        assert any("MCP server gone did not start" in w.message for w in watch.of(Warned))


@contextlib.contextmanager
def over_http() -> Iterator[str]:
    """The same server as a program of its own, spoken to by streamable HTTP; its address."""
    port = free_port()
    process = subprocess.Popen([sys.executable, str(SERVER), str(port)], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: listens(port))
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), PATIENCE):
        return True
    return False


async def test_calls_over_http(home: Path, workspace: Path) -> None:
    replies = [
        call("far__add", {"a": 20, "b": 22}, times=1),
        call("far__broken", {}, times=1),
        say("ok", times=1),
        call("far__add", {"a": 1, "b": 1}, times=1),
        say("it is gone"),
    ]

    async def main(address: str, stop: contextlib.ExitStack) -> None:
        (home / "config.toml").write_text(f'[mcp_servers.far]\nurl = "{address}"\ntool_timeout_sec = 60\n')
        async with serving(replies) as server, agent_on(server, workspace) as watch:
            assert (await watch.turn("add")).text == "ok"
            assert watch.of(ToolStarted)[0].title == "far: add"
            assert watch.outputs[0].strip() == "42"
            assert [e.ok for e in watch.of(ToolFinished)] == [True, False] and "broken" in watch.outputs[1]
            stop.close()  # a server that goes away is an answer to the model, not the end of the turn
            assert (await watch.turn("add again")).text == "it is gone"
            assert not watch.of(ToolFinished)[-1].ok and watch.outputs[-1].startswith("far: ")

    with contextlib.ExitStack() as stack:
        await main(stack.enter_context(over_http()), stack)


async def test_an_address_without_a_server_is_named(home: Path, workspace: Path) -> None:
    (home / "config.toml").write_text('[mcp_servers.far]\nurl = "http://127.0.0.1:9/mcp"\n')

    async with serving([say("ok")]) as server, agent_on(server, workspace) as watch:
        assert (await watch.turn("hi")).text == "ok"
        assert any("MCP server far did not start" in w.message for w in watch.of(Warned))


async def test_a_server_starts_while_the_screen_has_stderr(home: Path, workspace: Path) -> None:
    """In the terminal UI stderr is no file: a process cannot be given it."""
    configured(home)
    replies = [call("calc__add", {"a": 20, "b": 22}, times=1), say("ok")]
    with contextlib.redirect_stderr(CapturedStderr(lambda line: None)):
        async with serving(replies) as server, agent_on(server, workspace) as watch:
            assert (await watch.turn("add")).text == "ok"
            assert watch.outputs[0] == "42 hi"
    assert (home / "mcp/calc.log").exists()


async def test_a_server_that_lies_harms_nothing(home: Path, workspace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (home / "config.toml").write_text(
        f'[mcp_servers.liar]\ncommand = "{sys.executable}"\nargs = ["{SERVER.with_name("mcp_liar.py")}"]\n'
        "startup_timeout_sec = 20\n"
    )
    mcp = McpTools()
    assert await mcp.start(load_settings(workspace).mcp_servers) == []
    names = [tool.name for tool in mcp.tools]
    assert len({*names}) == len(names) == 5 and all(len(name) <= 64 for name in names)
    await mcp.close()
    replies = [
        call("liar__odd", "[1]", times=1),
        *(call(name, {}, times=1) for name in names[1:]),
        say("ok"),
    ]

    async with serving(replies) as server, agent_on(server, workspace) as watch:
        assert (await watch.turn("go")).text == "ok"
        assert 'Its arguments: {"a"?: any, "b"?: any/string}' in watch.outputs[0]
        assert watch.outputs[1:] == ["what the file says\n[resource file:///b]", '{"answer": 42}', "1", "2"]
    assert "Traceback" not in capfd.readouterr().err


async def test_an_approval_shows_the_arguments(home: Path, workspace: Path) -> None:
    configured(home)
    replies = [call("calc__add", {"a": 1, "b": 2}, times=1), say("ok")]

    async with serving(replies) as server, agent_on(server, workspace, "approval_policy=untrusted") as watch:
        watch.agent.submit("add")
        asked = await watch.until(ApprovalAsked)
        assert asked.title == 'calc: add {"a": 1, "b": 2}'
        watch.agent.approve(asked.approval_id, "once")
        await watch.until(ToolFinished)
        assert watch.outputs == ["3 hi"]
