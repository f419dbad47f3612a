"""The HTTP side: bodies, errors, streams, the store, auth, metrics."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from serving import backend_of, script, serving, text
from waiting import until

from fulgur.backends.base import Capabilities
from fulgur.errors import UsageError
from fulgur.server import app, auth
from fulgur.server import config as settings
from fulgur.server.config import Model, Price, ServerConfig
from fulgur.ui.cli import main


@asynccontextmanager
async def asking(*args: Any, **options: Any) -> Any:
    async with serving(*args, **options) as running, aiohttp.ClientSession() as session:

        async def ask(method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
            root = running.base_url if not path.startswith("//") else running.base_url.removesuffix("/v1")
            url = root + path.replace("//", "/", 1)
            async with session.request(method, url, json=body, **more) as answer:
                json = answer.content_type == "application/json"
                return answer.status, await answer.json() if json else await answer.text()

        yield running, ask


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x"}, "model"),
        ({"model": 5, "input": "x"}, "model"),
        ({"model": "m", "input": 5}, "input"),
        ({"model": "m", "input": [5]}, "input[0]"),
        ({"model": "m", "input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"model": "m", "input": "x", "temperature": "hot"}, "temperature"),
        ({"model": "m", "input": "x", "top_p": 2}, "top_p"),
        ({"model": "m", "input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"model": "m", "input": "x", "tools": {}}, "tools"),
        ({"model": "m", "input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"model": "m", "input": "x", "tool_choice": "maybe"}, "tool_choice"),
        ({"model": "m", "input": "x", "text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"model": "m", "input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"model": "m", "input": "x", "conversation": "c"}, "conversation"),
        ({"model": "m", "input": "x", "truncation": "auto"}, "truncation"),
        ({"model": "m", "input": "x", "metadata": {"a": 5}}, "metadata[...]"),
        ({"model": "m", "input": [{"id": "msg_none"}]}, "input[0].id"),
    ],
)
async def test_a_wrong_field_is_a_400_that_names_it(body: dict[str, Any], param: str) -> None:
    async with asking() as (_, ask):
        status, answer = await ask("POST", "/responses", body)
        assert (status, answer["error"]["param"]) == (400, param), answer


async def test_what_is_not_json_or_not_there() -> None:
    async with asking() as (_, ask):
        assert (await ask("POST", "/responses", data=b"{"))[1]["error"]["code"] == "invalid_json"
        assert (await ask("POST", "/responses", []))[0] == 400
        assert (await ask("GET", "/responses"))[0] == 426
        assert (await ask("PUT", "/responses"))[0] == 405
        assert (await ask("GET", "/nothing"))[0] == 404
        assert (await ask("GET", "/responses/resp_none"))[0] == 404
        assert (await ask("POST", "/responses/resp_none/cancel"))[0] == 404
        status, answer = await ask("POST", "/responses", {"model": "other", "input": "x"})
        assert status == 404 and answer["error"]["code"] == "model_not_found" and "'m'" in answer["error"]["message"]
        assert (await ask("POST", "//responses", {"model": "m", "input": "x"}))[0] == 200


async def test_an_overlong_prompt_is_told_in_every_form() -> None:
    async with asking(context=50) as (_, ask):
        body = {"model": "m", "input": "word " * 500}
        status, answer = await ask("POST", "/responses", body)
        assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
        _, stream = await ask("POST", "/responses", {**body, "stream": True})
        assert "event: response.failed" in stream and "context_length_exceeded" in stream
        chat = {"model": "m", "messages": [{"role": "user", "content": "word " * 500}]}
        assert (await ask("POST", "/chat/completions", chat))[1]["error"]["code"] == "context_length_exceeded"
        status, answer = await ask("POST", "/chat/completions", {**chat, "stream": True})
        assert status == 400 and answer["error"]["code"] == "context_length_exceeded"


async def test_a_model_that_cannot_says_what_it_can() -> None:
    only_code = Capabilities(context=1000, chat=False, tools=False, fim=True, edit=True)
    async with asking(capabilities=only_code) as (_, ask):
        status, answer = await ask("POST", "/responses", {"model": "m", "input": "hi"})
        message = answer["error"]["message"]
        assert status == 400 and answer["error"]["code"] == "model_not_capable"
        assert "suffix" in message and "[models.NAME]" in message and "1000 tokens" in message
        assert (await ask("POST", "/completions", {"model": "m", "prompt": "a", "suffix": "b"}))[0] == 200
        edit = [{"type": "edit", "path": "a.py", "region": "x = 1\n", "instruction": "rename x to y"}]
        assert (await ask("POST", "/responses", {"model": "m", "input": edit}))[0] == 200
        assert (await ask("POST", "/responses", {"model": "m", "input": [{"type": "edit"}]}))[0] == 400


async def test_stored_responses_chain_and_belong_to_their_key() -> None:
    keys = {name: auth.new_key(name) for name in ("ann", "bob")}
    config = ServerConfig(keys=[record for _, record in keys.values()])
    async with asking(config=config) as (_, ask):
        ann = {"headers": {"Authorization": f"Bearer {keys['ann'][0]}"}}
        bob = {"headers": {"Authorization": f"Bearer {keys['bob'][0]}"}}
        _, first = await ask("POST", "/responses", {"model": "m", "input": "one"}, **ann)
        assert (await ask("GET", f"/responses/{first['id']}", **ann))[1] == first
        assert (await ask("GET", f"/responses/{first['id']}", **bob))[0] == 404
        body = {"model": "m", "input": "two", "previous_response_id": first["id"]}
        assert (await ask("POST", "/responses", body, **bob))[1]["error"]["code"] == "previous_response_not_found"
        assert (await ask("POST", "/responses", body, **ann))[0] == 200
        assert (await ask("POST", "/responses", body))[0] == 401
        assert (await ask("POST", "/responses", body, headers={"Authorization": "Bearer fg-wrong"}))[0] == 401
        assert (await ask("GET", "//healthz"))[0] == 200
        deleted = await ask("DELETE", f"/responses/{first['id']}", **ann)
        assert deleted == (200, {"id": first["id"], "object": "response", "deleted": True})
        assert (await ask("POST", "/responses", body, **ann))[0] == 400


async def test_a_bind_beyond_loopback_needs_a_key() -> None:
    config = ServerConfig()
    config.server.host = "0.0.0.0"
    with pytest.raises(UsageError, match="without an API key"):
        await app.start(config)


async def test_foreign_pages_and_names_are_refused() -> None:
    config = ServerConfig()
    config.server.origins = ["https://ide.example"]
    async with asking(config=config) as (running, ask):
        body = {"model": "m", "input": "x"}
        for origin, status in (
            ("https://evil.example", 403),
            ("null", 403),
            ("https://ide.example", 200),
            (f"http://127.0.0.1:{running.port}", 200),
        ):
            assert (await ask("POST", "/responses", body, headers={"Origin": origin}))[0] == status, origin
        assert (await ask("GET", "/models", headers={"Host": "evil.example"}))[0] == 403
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await session.ws_connect(f"{running.base_url}/responses", headers={"Origin": "https://evil.example"})
            assert caught.value.status == 403


async def test_bodies_and_nesting_are_limited() -> None:
    config = ServerConfig()
    config.server.max_body_mb = 0.01
    async with asking(config=config) as (_, ask):
        status, answer = await ask("POST", "/responses", {"model": "m", "input": "x" * 20_000})
        assert status == 413 and answer["error"]["code"] == "body_too_large"
        deep: Any = "x"
        for _ in range(150):
            deep = [deep]
        assert (await ask("POST", "/responses", {"model": "m", "input": deep}))[0] == 400


async def test_sse_is_one_event_a_write_and_ends_with_done() -> None:
    async with serving(script(text("one two three"))) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        body = b'{"model":"m","input":"x","stream":true}'
        head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert "200 ok" in answer and "text/event-stream" in answer
        chunks = []
        while True:
            size = int(await reader.readline(), 16)
            chunks.append(await reader.readexactly(size))
            await reader.readexactly(2)
            if size == 0:
                break
        assert chunks[-2] == b"data: [DONE]\n\n"
        for chunk in chunks[:-2]:
            name, data, *rest = chunk.decode().split("\n")
            assert rest == ["", ""] and data.startswith('data: {"type":"' + name.removeprefix("event: ") + '"')
        writer.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_vanished_http_client_frees_the_engine(stream: bool) -> None:
    async with serving(script({"steps": [{"tokens": 100_000}]}, rate=500)) as running:
        async with aiohttp.ClientSession() as session:
            body = {"model": "m", "input": "x", "stream": stream}
            request = asyncio.create_task(session.post(f"{running.base_url}/responses", json=body))
            await until(lambda: backend_of(running).running)
            request.cancel() if not request.done() else request.result().close()
        await until(lambda: not backend_of(running).running)


async def test_a_failing_backend_fails_the_response_and_nothing_else() -> None:
    reply = {"match": "break", "steps": [{"text": "begun "}, {"fail": "the engine died"}]}
    async with asking(script(reply)) as (_, ask):
        _, answer = await ask("POST", "/responses", {"model": "m", "input": "break"})
        assert answer["status"] == "failed" and answer["error"]["message"] == "the engine died"
        assert answer["output"][0]["content"][0]["text"] == "begun "
        _, stream = await ask("POST", "/responses", {"model": "m", "input": "break", "stream": True})
        assert "event: response.failed" in stream
        assert (await ask("POST", "/responses", {"model": "m", "input": "fine"}))[1]["status"] == "completed"


async def test_costs_and_metrics() -> None:
    model = Model(backend="scripted", price=Price(input=1.0, cached_input=0.1, output=10.0))
    async with asking(script(text("one two three")), model=model) as (_, ask):
        _, answer = await ask("POST", "/responses", {"model": "m", "input": "x"})
        usage = answer["usage"]
        expected = (usage["input_tokens"] * 1.0 + usage["output_tokens"] * 10.0) / 1e6
        assert usage["cost"] == pytest.approx(expected) and usage["output_tokens"] == 3
        _, metrics = await ask("GET", "//metrics")
        assert 'fulgur_output_tokens_total{model="m"} 3' in metrics
        assert 'fulgur_responses_total{model="m",status="completed"} 1' in metrics
        assert 'fulgur_first_token_seconds_count{model="m"} 1' in metrics


async def test_reaching_the_token_limit_is_incomplete() -> None:
    async with asking(script(text("one two three four"))) as (_, ask):
        _, answer = await ask("POST", "/responses", {"model": "m", "input": "x", "max_output_tokens": 2})
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        assert answer["output"][0]["content"][0]["text"] == "one two"


async def test_stored_responses_survive_a_kill(tmp_path: Path) -> None:
    """A real server process, killed with -9 right after the answer came; the next one has the response."""
    file = tmp_path / "server.toml"
    file.write_text(f'[server]\nport = 0\nstore = "{tmp_path}/store.sqlite"\n[models.m]\nbackend = "scripted"\n')

    async def session(work: Any) -> Any:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fulgur", "serve", "-f", str(file), stdout=subprocess.PIPE, env=os.environ
        )
        try:
            assert process.stdout is not None
            url = (await process.stdout.readline()).decode().split()[-1]
            async with aiohttp.ClientSession() as client:
                return await work(client, url)
        finally:
            process.send_signal(signal.SIGKILL)
            await process.wait()

    async def write(client: aiohttp.ClientSession, url: str) -> dict[str, Any]:
        async with client.post(f"{url}/responses", json={"model": "m", "input": "keep me"}) as answer:
            return dict(await answer.json())

    async def read(client: aiohttp.ClientSession, url: str) -> tuple[Any, Any, str]:
        async with client.get(f"{url}/responses/{kept['id']}") as answer:
            found = await answer.json()
        body = {"model": "m", "input": "on", "previous_response_id": kept["id"]}
        async with client.post(f"{url}/responses", json=body) as answer:
            on = await answer.json()
        async with client.get(f"{url}/responses/{kept['id']}?stream=true&starting_after=2") as answer:
            return found, on, await answer.text()

    kept = await session(write)
    found, on, events = await session(read)
    assert found == kept and on["status"] == "completed"
    assert "event: response.completed" in events and '"sequence_number":2,' not in events


def test_config_mistakes_are_named(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    for content, wanted in (
        ("[server]\nprot = 5", "prot"),
        ('[models.x]\nbackend = "vlm"', "'vlm' is not one of: local, cluster, scripted"),
        ('[models.x]\nbackend = "local"', "models.x.path is missing"),
        ('[models.x]\nbackend = "scripted"\npool = "p"', r"'p' is not defined; add \[pools.p\]"),
        ("[server", "server.toml"),
        ('[server]\norigins = ["localhost:3000"]', "'localhost:3000' is not a valid origin"),
        ('[server]\notlp = "localhost:4318"', "server.otlp: 'localhost:4318' is not a valid URL"),
        ('[server]\nstore = "mysql://x"', "server.store: 'mysql://x' is not supported"),
        ("[server]\nmax_body_mb = 64", "server.max_body_mb is 64, but one key may have only 24 MB in flight"),
        ("[server]\nmax_body_mb = inf", "max_body_mb"),
        ('[[keys]]\nname = "a"\nsha256 = "fg-secret"', "sha256"),
        (f'[[keys]]\nname = "a"\nsha256 = "{"a" * 64}"\n' * 2, "2 keys have the name 'a'"),
        (
            '[models.x]\nbackend = "local"\npath = "p"\ntools = false',
            "models.x.tools has no effect with the backend 'local'",
        ),
        ('[models.x]\nbackend = "local"\npath = "p"\nbits = 3', "bits"),
        ('[models.x]\nbackend = "local"\npath = "p"\nruntime = "fast"', "runtime"),
        ('[models.x]\nbackend = "local"\npath = "p"\nthreads = 100000', "threads"),
        ('[backends.u]\nurl = "10.0.0.5:8000/v1"', "backends.u.url: '10.0.0.5:8000/v1' is not a valid URL"),
        ('[backends.local]\nurl = "http://x/v1"', "'local' is the name of a built-in backend"),
        (
            '[backends.u]\nurl = "http://x/v1"\n[models.x]\nbackend = "u"\ncontext = 9\ndevice = "cuda"',
            "models.x.device has no effect with the backend 'u'",
        ),
        ("[pools.p.tiers.flex]\nslots = 2", "slots has no effect unless the pool sets `concurrent`"),
        (
            "[pools.p]\nconcurrent = 4\n[pools.p.tiers.flex]\nslots = 1\nreserved = 2",
            r"`reserved` \(2\) is more than `slots` \(1\)",
        ),
    ):
        file.write_text(content)
        with pytest.raises(UsageError, match=wanted):
            settings.load(file)
    file.write_text("[server]\nport = 1\n", encoding="utf-8-sig")
    assert settings.load(file).server.port == 1


@pytest.mark.parametrize("input", ["", [], None])
async def test_an_empty_input_is_the_clients_mistake(input: Any) -> None:
    body = {"model": "m"} if input is None else {"model": "m", "input": input}
    async with asking() as (_, ask):
        status, answer = await ask("POST", "/responses", body)
        assert status == 400 and answer["error"]["param"] == "input"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": None},
        {"role": "user"},
        {"role": "assistant", "content": None},
        {"role": "tool", "tool_call_id": "x"},
    ],
)
async def test_a_chat_message_without_content_is_the_clients_mistake(message: dict[str, Any]) -> None:
    async with asking() as (_, ask):
        status, answer = await ask("POST", "/chat/completions", {"model": "m", "messages": [message]})
        assert status == 400 and answer["error"]["param"].startswith("messages")


async def test_a_slash_at_the_end_changes_nothing() -> None:
    async with asking() as (_, ask):
        for path in ("//healthz/", "/models/", "/models/m/"):
            assert (await ask("GET", path))[0] == 200
        status, answer = await ask("POST", "/responses/", {"model": "m", "input": "x"})
        assert status == 200
        assert (await ask("GET", f"/responses/{answer['id']}/"))[0] == 200


async def test_a_page_of_a_named_origin_may_call_and_read() -> None:
    config = ServerConfig(keys=[auth.new_key("k")[1]])
    config.server.origins = ["https://app.example/"]
    async with serving(config=config) as running, aiohttp.ClientSession() as session:
        url = f"{running.base_url}/responses"
        asked = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        async with session.options(url, headers={"Origin": "https://app.example", **asked}) as answer:
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
            assert "authorization" in answer.headers["Access-Control-Allow-Headers"]
            assert "POST" in answer.headers["Access-Control-Allow-Methods"]
        async with session.post(url, json={}, headers={"Origin": "https://app.example"}) as answer:
            assert answer.status == 401, "the key is still asked for"
            assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
        async with session.options(url, headers={"Origin": "https://other.example", **asked}) as answer:
            assert answer.status == 403 and "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("wrong", [["--new-key", ""], ["--model", "no/such/folder"]])
def test_a_server_that_cannot_be_what_was_asked_does_not_start(wrong: list[str], home: Path) -> None:
    assert main(["serve", "--port", "0", *wrong]) == 2
