"""Upstream APIs, played by a Fulgur server with a scripted model: a server in front of a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from aiohttp import web
from serving import backend_of, script, serving, text
from waiting import until

from fulgur.client import Connection
from fulgur.protocol import events as ev
from fulgur.protocol.errors import ApiError
from fulgur.server import app
from fulgur.server.config import Model, ServerConfig, Upstream

APIS: tuple[Literal["chat", "responses"], ...] = ("chat", "responses")
REPLIES = (
    {
        "match": "weather",
        "after": "message",
        "steps": [{"text": "I look."}, {"call": "look", "arguments": {"city": "Oslo"}}],
    },
    {"match": "patch", "after": "message", "steps": [{"custom": "patch", "input": "*** Begin\nx"}]},
    {"match": "think", "steps": [{"reasoning": "hm, well"}, {"text": "thought"}]},
    {"match": "long", "steps": [{"tokens": 3000}]},
    {"match": "break", "steps": [{"text": "begun"}, {"fail": "gone"}]},
)
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "patch", "format": {"type": "text"}}


@asynccontextmanager
async def in_front(
    api: Literal["chat", "responses"], url: str, timeout_s: float = 300.0, **model: Any
) -> AsyncIterator[Connection]:
    """A server whose model `front` is the model `m` of another."""
    settings = Model(**{"backend": "up", "upstream_model": "m", "context": 100_000, "reasoning": True, **model})
    config = ServerConfig(models={"front": settings}, backends={"up": Upstream(url, api, timeout_s=timeout_s)})
    config.server.port, config.server.store = 0, ":memory:"
    running = await app.start(config)
    connection = await Connection.open(running.base_url)
    try:
        yield connection
    finally:
        await connection.close()
        await running.close()


async def ask(connection: Connection, **body: Any) -> Any:
    return await (await connection.create({"model": "front", "store": False, **body})).final()


@pytest.mark.parametrize("api", APIS)
async def test_text_reasoning_tools_and_usage_come_through(api: Literal["chat", "responses"]) -> None:
    async with serving(script(*REPLIES)) as behind, in_front(api, behind.base_url) as connection:
        answer = await ask(connection, input="hello")
        assert answer.output_text == "You said: hello" and answer.model == "front"
        assert answer.usage.output_tokens > 0
        thought = await ask(connection, input="think")
        assert [item["type"] for item in thought.output] == ["reasoning", "message"]
        called = await ask(connection, input="weather", tools=[LOOK])
        assert [item["type"] for item in called.output] == ["message", "function_call"]
        call = called.output[1]
        assert json.loads(call["arguments"]) == {"city": "Oslo"} and call["status"] == "completed"
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        done = await ask(connection, input=[output], previous_response_id=called.id, tools=[LOOK])
        assert done.status == "completed"
        limited = await ask(connection, input="long", max_output_tokens=5)
        assert limited.incomplete_details == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("api", APIS)
async def test_what_only_the_upstream_knows_is_given_on(api: Literal["chat", "responses"]) -> None:
    """Sampling settings always; unknown fields and hosted tools where both speak the same dialect."""
    seen: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(await request.json())
        return web.json_response({"error": {"message": "no", "code": "no"}}, status=400)

    behind = web.Application()
    behind.router.add_post("/v1/responses", answer)
    behind.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(behind)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    settings = {"top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1, "logit_bias": {"5": 2.0}, "seed": 7, "stop": ["x"]}
    try:
        async with in_front(api, f"http://127.0.0.1:{runner.addresses[0][1]}/v1") as connection:
            with pytest.raises(ApiError, match="no"):
                extra = {"tools": [LOOK, {"type": "web_search"}]} if api == "responses" else {}
                await ask(connection, input="x", **settings, best_effort="yes", **extra)
    finally:
        await runner.cleanup()
    assert {name: seen[0].get(name) for name in settings} == settings
    assert ("best_effort" in seen[0]) == (api == "responses")
    assert api == "chat" or seen[0]["tools"][1] == {"type": "web_search"}


async def test_a_custom_tool_goes_through_responses_as_it_is() -> None:
    async with serving(script(*REPLIES)) as behind, in_front("responses", behind.base_url) as connection:
        called = await ask(connection, input="patch", tools=[PATCH])
        assert called.output[0]["type"] == "custom_tool_call" and called.output[0]["input"] == "*** Begin\nx"


@pytest.mark.parametrize("api", APIS)
async def test_an_upstream_can_be_steered_and_cancelled(api: Literal["chat", "responses"]) -> None:
    async with serving(script(*REPLIES, rate=400)) as behind, in_front(api, behind.base_url) as connection:
        stream = await connection.create({"model": "front", "input": "long", "store": False})
        async for event in stream:
            if isinstance(event, ev.OutputTextDelta) and event.delta == " w0005":
                await stream.steer("another way")
        assert (await stream.final()).output_text == "You said: another way"
        stream = await connection.create({"model": "front", "input": "long", "store": False})
        async for event in stream:
            if isinstance(event, ev.OutputTextDelta):
                await stream.cancel()
        await until(lambda: backend_of(behind).running == 0)  # both upstream answers were dropped


@pytest.mark.parametrize("api", APIS)
async def test_what_the_upstream_refuses_or_breaks_is_told(api: Literal["chat", "responses"]) -> None:
    async with serving(script(*REPLIES), context=300) as behind:
        async with in_front(api, behind.base_url) as connection:
            with pytest.raises(ApiError) as caught:
                await ask(connection, input="word " * 2000)
            assert caught.value.code == "context_length_exceeded"
            with pytest.raises(ApiError, match="gone"):
                await ask(connection, input="break")
        async with in_front(api, behind.base_url, upstream_model="other") as connection:
            with pytest.raises(ApiError) as caught:
                await ask(connection, input="x")
            assert caught.value.code == "model_not_found"
    async with in_front(api, behind.base_url) as connection:
        with pytest.raises(ApiError) as caught:
            await ask(connection, input="x")
        assert caught.value.code == "model_not_available"
        assert caught.value.message.endswith(f" at {behind.base_url} does not answer: Connection refused")


async def test_an_upstream_that_goes_away_or_falls_silent_is_told_in_words() -> None:
    async def chat(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b'data: {"choices": [{"delta": {"content": "half"}}]}\n\n')
        if "away" in await request.text():
            assert request.transport is not None
            request.transport.abort()
        else:
            await asyncio.sleep(30)
        return answer

    application = web.Application()
    application.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        async with in_front("chat", url, timeout_s=0.2) as connection:
            with pytest.raises(
                ApiError, match=f"The backend of 'front' at {url} ended the answer early: the connection was closed"
            ):
                await ask(connection, input="go away")
            with pytest.raises(
                ApiError, match=f"The backend of 'front' at {url} ended the answer early: no answer in time"
            ):
                await ask(connection, input="be silent")
    finally:
        await runner.cleanup()


async def test_another_model_that_answers_is_an_error() -> None:
    """Some servers answer with whatever they have loaded: then the answer is not passed off as the one asked for."""

    async def chat(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        chunk = {"model": "small-7b", "choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}
        await answer.write(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())
        return answer

    application = web.Application()
    application.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        async with in_front("chat", url, upstream_model="org/big-70b") as connection:
            with pytest.raises(ApiError) as caught:
                await ask(connection, input="x")
            assert caught.value.code == "model_mismatch"
        async with in_front("chat", url, upstream_model="org/small-7b") as connection:
            assert (await ask(connection, input="x")).output_text == "hi"
    finally:
        await runner.cleanup()


async def test_fill_in_the_middle_goes_through() -> None:
    import aiohttp

    async with serving(script(text("middle"))) as behind:
        async with in_front("chat", behind.base_url, fim=True) as connection, aiohttp.ClientSession() as session:
            body = {"model": "front", "prompt": "a", "suffix": "b"}
            async with session.post(f"{connection.base_url}/completions", json=body) as answer:
                assert (await answer.json())["choices"][0]["text"] == "middle"
