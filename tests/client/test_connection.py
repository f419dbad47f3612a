"""The client against a real server: lanes, steering, cancel, and what happens when the socket goes away."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from serving import backend_of, script, serving, text

from fulgur.client import Connection
from fulgur.client.local import ensure_server, find
from fulgur.client.once import LocalServer
from fulgur.errors import FulgurError
from fulgur.protocol import events as ev
from fulgur.protocol.errors import ApiError
from fulgur.server.config import ServerConfig
from fulgur.server.state import Server

LONG = {"match": "long", "steps": [{"tokens": 400}]}
WHOLE = "".join(f" w{index:04d}" for index in range(400))


def drop_sockets(server: Server) -> None:
    """Cut every connection, as a network does."""
    for run in list(server.runs.values()):
        run.sink._transport.abort()  # type: ignore[attr-defined]


async def test_turns_models_and_errors() -> None:
    async with serving(script(text("hello", match="hi"))) as running:
        connection = await Connection.open(running.base_url)
        assert connection.is_fulgur
        first = await (await connection.create({"model": "m", "input": "hi", "store": False})).final()
        assert first.output_text == "hello"
        body = {"model": "m", "input": "more", "previous_response_id": first.id, "store": False}
        assert (await (await connection.create(body)).final()).previous_response_id == first.id
        with pytest.raises(ApiError, match="no model 'x'"):
            await (await connection.create({"model": "x", "input": "hi"})).final()
        assert [model["id"] for model in await connection.models()] == ["m"]
        await connection.close()
        with pytest.raises(FulgurError, match="closed"):
            await connection.create({"model": "m", "input": "hi"})


async def test_no_server_is_a_clear_error() -> None:
    with pytest.raises(FulgurError, match="No server answers"):
        await Connection.open("http://127.0.0.1:9/v1")
    async with serving(script(text("hello"))) as running:
        connection = await Connection.open(running.base_url)
    with pytest.raises(FulgurError, match="No server answers"):
        await connection.models()
    await connection.close()


async def test_lanes_at_once() -> None:
    async with serving(script(LONG, rate=800)) as running:
        connection = await Connection.open(running.base_url)
        slow = await connection.create({"model": "m", "input": "long"}, lane="slow")
        quick = await connection.create({"model": "m", "input": "quick"}, lane="quick")
        assert (await quick.final()).output_text == "You said: quick"
        assert not slow.done
        assert (await slow.final()).output_text == WHOLE
        queued = [await connection.create({"model": "m", "input": str(number)}) for number in range(5)]
        answers = [(await stream.final()).output_text for stream in queued]
        assert answers == [f"You said: {number}" for number in range(5)]
        await connection.close()


async def test_steer_goes_on_in_the_same_stream() -> None:
    async with serving(script({"match": "long", "steps": [{"tokens": 5000}]}, rate=500)) as running:
        connection = await Connection.open(running.base_url)
        stream = await connection.create({"model": "m", "input": "long", "store": False})
        reasons = []
        async for event in stream:
            if isinstance(event, ev.OutputTextDelta) and event.delta == " w0010":
                await stream.steer("short please")
            if isinstance(event, ev.TERMINAL):
                reasons.append((event.response.incomplete_details or {}).get("reason"))
        assert reasons == ["steered", None]
        assert (await stream.final()).output_text == "You said: short please"
        with pytest.raises(FulgurError, match="has ended"):
            await stream.steer("too late")
        assert backend_of(running).running == 0
        await connection.close()


async def test_cancel_ends_the_stream() -> None:
    async with serving(script({"steps": [{"tokens": 5000}]}, rate=500)) as running:
        connection = await Connection.open(running.base_url)
        stream = await connection.create({"model": "m", "input": "x"})
        async for event in stream:
            if isinstance(event, ev.OutputTextDelta):
                await stream.cancel()
        assert (await stream.final()).status == "cancelled"
        await connection.close()


@pytest.mark.parametrize("store", [True, False])
async def test_a_lost_socket_is_mended_and_nothing_comes_twice(store: bool) -> None:
    """A stored response goes on by itself and is replayed; another one is asked for again, with the partial message
    last and still open. Either way the text is that of an undisturbed run."""

    async with serving(script(LONG, rate=800)) as running:
        connection = await Connection.open(running.base_url)
        first = await (await connection.create({"model": "m", "input": "hi", "store": store})).final()
        body = {"model": "m", "input": "long", "store": store, "previous_response_id": first.id}
        stream = await connection.create(body)
        seen, ids = [], []
        async for event in stream:
            if isinstance(event, ev.ResponseCreated):
                ids.append(event.response.id)
            if isinstance(event, ev.OutputTextDelta):
                seen.append(event.delta)
                if event.delta == " w0020":
                    drop_sockets(running.server)
        assert "".join(seen) == (await stream.final()).output_text == WHOLE
        if store:
            assert stream.body is body and ids == [stream.response_id]
        else:
            *_, asked, kept = stream.body["input"]
            assert asked["content"][0]["text"] == "long" and kept["status"] == "in_progress"
            assert kept["role"] == "assistant" and WHOLE.startswith(kept["content"][0]["text"])
        on = await (await connection.create({"model": "m", "input": "on", "store": store})).final()
        assert on.output_text == "You said: on"
        await connection.close()


async def test_a_steer_that_was_lost_with_the_socket_is_said_at_the_end() -> None:
    async with serving(script(LONG, rate=800)) as running:
        connection = await Connection.open(running.base_url)
        stream = await connection.create({"model": "m", "input": "long", "store": False})
        cut = False
        async for event in stream:
            if isinstance(event, ev.OutputTextDelta) and event.delta == " w0020" and not cut:
                cut = True
                drop_sockets(running.server)
                await stream.steer("then this")
        assert (await stream.final()).output_text == "You said: then this"
        await connection.close()


async def test_a_response_that_ended_while_away_is_replayed() -> None:
    async with serving(script(LONG)) as running:
        connection = await Connection.open(running.base_url)
        stream = await connection.create({"model": "m", "input": "long"})
        seen: list[ev.Event] = []
        assert connection._socket is not None
        async for event in stream:
            seen.append(event)
            if isinstance(event, ev.ResponseInProgress):
                # Stop reading until the server has finished, then cut: the rest must come from the store.
                transport: Any = connection._socket._response.connection.transport  # type: ignore[union-attr]
                transport.pause_reading()
                while running.server.metrics.get("fulgur_responses_total", model="m", status="completed") < 1:
                    await asyncio.sleep(0.01)
                transport.abort()
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert (await stream.final()).output_text == WHOLE
        await connection.close()


async def test_an_unknown_previous_response_is_sent_again_in_full() -> None:
    async with serving() as running:
        connection = await Connection.open(running.base_url)
        first = await (await connection.create({"model": "m", "input": "hi", "store": False})).final()
        assert connection._socket is not None
        connection._socket._response.connection.transport.abort()  # type: ignore[union-attr]
        body = {"model": "m", "input": "on", "previous_response_id": first.id, "store": False}
        stream = await connection.create(body)
        assert (await stream.final()).output_text == "You said: on"
        assert [item["role"] for item in stream.body["input"]] == ["user", "assistant", "user"]
        await connection.close()


async def test_a_server_that_stays_away_fails_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulgur.client.connection.RETRY_DELAYS", (0.0, 0.05))

    async with serving(script({"steps": [{"tokens": 5000}]}, rate=300)) as running:
        connection = await Connection.open(running.base_url)
        stream = await connection.create({"model": "m", "input": "x"})
        await anext(stream)
    with pytest.raises(FulgurError, match="No server answers"):
        await stream.final()
    with pytest.raises(FulgurError):
        await connection.create({"model": "m", "input": "x"})
    await connection.close()


async def test_type_ahead() -> None:
    async with serving() as running:
        connection = await Connection.open(running.base_url)
        done = await connection.prefill({"model": "m", "input": "half a sen"})
        assert done is not None and done.input_tokens > 0
        await connection.close()


async def test_ensure_server_starts_one_and_finds_it_again(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('[server]\nport = 0\nstore = ":memory:"\n[models.m]\nbackend = "scripted"\n')
    settings = LocalServer(tmp_path, config=file)

    urls = await asyncio.gather(ensure_server(settings), ensure_server(settings))
    record = json.loads((tmp_path / "server.json").read_text())
    try:
        assert urls[0] == urls[1] == await find(tmp_path)
        connection = await Connection.open(urls[0])
        assert (await (await connection.create({"model": "m", "input": "hi"})).final()).output_text == "You said: hi"
        await connection.close()
    finally:
        os.kill(record["pid"], signal.SIGTERM)
    while await find(tmp_path) is not None:
        await asyncio.sleep(0.02)


async def test_a_server_started_by_hand_leaves_the_note_of_the_one_that_runs(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('[server]\nport = 0\nstore = ":memory:"\n[models.m]\nbackend = "scripted"\n')
    url = await ensure_server(LocalServer(tmp_path))
    command = [sys.executable, "-m", "fulgur", "serve", "--port", "0"]
    environment = {**os.environ, "FULGUR_HOME": str(tmp_path)}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        said = b"".join([await process.stdout.readline() for _ in range(4)]).decode()
        assert f"keep using the server at {url}" in said
    finally:
        process.terminate()
        await process.wait()
    assert await find(tmp_path) == url, "it went without taking the other's note away"
    os.kill(json.loads((tmp_path / "server.json").read_text())["pid"], signal.SIGTERM)


async def test_a_config_that_is_wrong_is_told_by_ensure_server(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text("[server]\nprot = 1\n")
    with pytest.raises(FulgurError, match="did not start"):
        await ensure_server(LocalServer(tmp_path, config=file))


async def test_the_connection_limit_of_the_server_is_not_noticed() -> None:
    config = ServerConfig()
    config.server.connection_minutes = 0.3 / 60
    async with serving(config=config) as running:
        connection = await Connection.open(running.base_url)
        await asyncio.sleep(0.5)
        assert (await (await connection.create({"model": "m", "input": "hi"})).final()).output_text == "You said: hi"
        await connection.close()


async def test_a_taken_port_and_an_idle_server(tmp_path: Path) -> None:
    """The configured port is taken: another is used. Nobody calls: the server ends and takes its note away."""

    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    file = tmp_path / "server.toml"
    file.write_text('[server]\nstore = ":memory:"\n[models.m]\nbackend = "scripted"\n')
    url = await ensure_server(LocalServer(tmp_path, config=file, port=port))
    assert f":{port}/" not in url
    taken.close()
    command = [sys.executable, "-m", "fulgur", "serve", "-f", str(file), "--port", "0", "--idle-exit", "0.005"]
    environment = {**os.environ, "FULGUR_HOME": str(tmp_path / "other")}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0
    assert not (tmp_path / "other" / "server.json").exists()
    os.kill(json.loads((tmp_path / "server.json").read_text())["pid"], signal.SIGTERM)
