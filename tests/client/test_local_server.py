"""The local server: the one that runs is used, unless its config was changed or somebody serves by hand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from fulgur.bench.scripted_server import free_port
from fulgur.client import Connection, local
from fulgur.client.local import ensure_server, find, outdated
from fulgur.client.once import LocalServer
from fulgur.errors import FulgurError
from fulgur.protocol import events as ev

MODEL = '[models.{}]\nbackend = "scripted"\npath = "script.json"\n'
SCRIPT = '{"rate": 100, "reply": [{"match": "long", "steps": [{"tokens": 9000}]}]}'


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Path]:
    """A home whose server.toml has one model; whatever serves it at the end is ended."""
    (tmp_path / "script.json").write_text(SCRIPT)
    settings(tmp_path, "m")
    yield tmp_path
    while await find(tmp_path) is not None:
        if pid := process_of(tmp_path):
            os.kill(pid, signal.SIGTERM)
        await asyncio.sleep(0.1)


def settings(home: Path, *models: str, port: int | None = None) -> None:
    own = f'[server]\nport = {free_port() if port is None else port}\nstore = ":memory:"\n'
    text = own + "".join(MODEL.format(name) for name in models)
    (home / "server.toml").write_text(text.replace("script.json", str(home / "script.json")))


def process_of(home: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return int(json.loads((home / "server.json").read_text())["pid"])
    return 0


@asynccontextmanager
async def by_hand(home: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`fulgur serve` in a terminal, and what it says first (or last)."""
    environment = {**os.environ, "FULGUR_HOME": str(home)}
    command = [sys.executable, "-m", "fulgur", "serve"]
    piped = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=piped, stderr=piped)
    assert process.stdout is not None and process.stderr is not None
    said = b"".join([await process.stdout.readline() for _ in range(4)])
    try:
        yield process, (said or await process.stderr.read()).decode()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def names(url: str) -> list[str]:
    connection = await Connection.open(url)
    models = await connection.models()
    await connection.close()
    return [str(model["id"]) for model in models]


async def test_a_model_added_to_the_config_is_there_at_once(home: Path) -> None:
    first = await ensure_server(LocalServer(home))
    assert "n" not in await names(first) and not outdated(home)
    settings(home, "m", "n")
    assert "was changed after the server" in outdated(home)
    urls = await asyncio.gather(ensure_server(LocalServer(home)), ensure_server(LocalServer(home)))
    assert urls[0] == urls[1] and (await names(urls[0]))[:2] == ["m", "n"] and not outdated(home)


async def test_a_changed_config_cuts_nobodys_answer(home: Path) -> None:
    url = await ensure_server(LocalServer(home))
    connection = await Connection.open(url)
    stream = await connection.create({"model": "m", "input": "long", "store": False})
    async for event in stream:
        if isinstance(event, ev.OutputTextDelta):
            break
    settings(home, "m", "n")
    assert await ensure_server(LocalServer(home)) == url and outdated(home)
    assert "n" not in await names(url)
    await stream.cancel()
    await stream.final()
    await connection.close()
    assert "n" in await names(await ensure_server(LocalServer(home)))


async def test_a_server_by_hand_gets_the_port_from_the_one_that_a_command_started(home: Path) -> None:
    url = await ensure_server(LocalServer(home))
    async with by_hand(home) as (process, said):
        assert f"listens on {url}" in said and "stopped the server" in said
        while process_of(home) != process.pid:  # its note comes after its words
            await asyncio.sleep(0.02)
        assert await find(home) == url
        settings(home, "m", "n")
        assert await ensure_server(LocalServer(home)) == url, "a person's server is nobody's to end"
        assert str(process.pid) in outdated(home)


async def test_a_port_that_our_own_server_has_is_said_to_be(home: Path) -> None:
    url = await ensure_server(LocalServer(home))
    connection = await Connection.open(url)
    stream = await connection.create({"model": "m", "input": "long", "store": False})
    async for event in stream:
        if isinstance(event, ev.OutputTextDelta):
            break
    async with by_hand(home) as (process, said):
        assert await process.wait() == 1
        pid = process_of(home)
        assert f"by another Fulgur server (process {pid})" in said and f"`kill {pid}`" in said
    assert await find(home) == url
    await connection.close()


async def test_an_answer_whose_server_was_killed_goes_on_at_the_next_one(home: Path) -> None:
    async def look() -> str:
        return await ensure_server(LocalServer(home))

    settings(home, "m", port=0)  # the next one is elsewhere
    connection = await Connection.open(await look(), look=look)
    stream = await connection.create({"model": "m", "input": "long", "store": False})
    seen = 0
    async for event in stream:
        if not isinstance(event, ev.OutputTextDelta):
            continue
        seen += 1
        if seen == 5:
            os.kill(process_of(home), signal.SIGKILL)
        if seen == 50:
            break
    await stream.cancel()
    whole = (await stream.final()).output_text.split()
    assert whole == [f"w{index:04d}" for index in range(len(whole))] and len(whole) >= 50
    assert connection.base_url == await find(home)
    await connection.close()


async def test_why_it_did_not_start_is_said_in_its_own_words(home: Path) -> None:
    (home / "server.log").write_text("fulgur: what went wrong yesterday\n  and what to do about it\n")
    (home / "server.toml").write_text("[models.x\n")
    with pytest.raises(FulgurError) as raised:
        await ensure_server(LocalServer(home))
    assert raised.value.message.startswith(f"The local server did not start: {home / 'server.toml'}: Expected ']'")
    assert str(home / "server.log") in str(raised.value.hint)
    (home / "server.toml").write_text('[server]\nstore = "/dev/null/store.sqlite"\n')
    with pytest.raises(FulgurError, match=r"Cannot open the response store /dev/null/store.sqlite: File") as raised:
        await ensure_server(LocalServer(home))
    assert raised.value.hint == "Free disk space, or correct the permissions; or name another file in server.store."


async def test_a_home_that_cannot_be_written_is_said() -> None:
    with pytest.raises(FulgurError, match=r"^/dev/null/home: Not a directory\n  .*FULGUR_HOME names another folder"):
        await ensure_server(LocalServer(Path("/dev/null/home")))


async def test_a_full_disk_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there is no room for the server's own words either."""

    async def ends_without_a_word(*_: object) -> None:
        (home / "server.log").touch()

    monkeypatch.setattr(local, "_launch", ends_without_a_word)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(FulgurError, match="the disk is full, and the local server cannot start"):
        await ensure_server(LocalServer(home))
