"""Spans of answers, as a collector on loopback gets them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from serving import script, serving, text

from fulgur.client import Connection
from fulgur.protocol.errors import ApiError
from fulgur.server import tracing
from fulgur.server.config import ServerConfig

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{TRACE}-{CALLER}-01"}


class Collector:
    """What came, and with which headers; `status` is how it answers."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        self.status = 200

    async def take(self, request: web.Request) -> web.Response:
        self.headers.append(request.headers.get("x-token"))
        self.bodies.append(await request.json())
        return web.json_response({}, status=self.status)

    def spans(self) -> list[dict[str, Any]]:
        scopes = [scope for body in self.bodies for each in body["resourceSpans"] for scope in each["scopeSpans"]]
        return [plain(span) for scope in scopes for span in scope["spans"]]


def plain(span: dict[str, Any]) -> dict[str, Any]:
    """With its attributes as values."""
    values = {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}
    return {**span, "attributes": values}


@asynccontextmanager
async def collecting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Collector, ServerConfig]]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=a%20b,broken")
    monkeypatch.setattr(tracing, "GATHER_S", 0.0)
    collector, application = Collector(), web.Application()
    application.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = ServerConfig()
    config.server.otlp = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield collector, config
    finally:
        await runner.cleanup()


async def test_an_answer_is_a_span_of_its_callers_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    async with collecting(monkeypatch) as (collector, config):
        async with serving(script(text("a b c")), config=config) as running, aiohttp.ClientSession() as http:
            body = {"model": "m", "input": "secret words", "temperature": 0.5, "max_output_tokens": 2}
            async with http.post(f"{running.base_url}/responses", json=body, headers=HEADERS) as answer:
                response = await answer.json()
        # Closing the server has sent what was left.
        spans = {span["name"]: span for span in collector.spans()}
        assert list(spans) == ["chat m", "queue", "prefill", "decode", "commit"]
        root = spans["chat m"]
        assert (root["traceId"], root["parentSpanId"], root["kind"]) == (TRACE, CALLER, tracing.SERVER)
        for name, value in {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "m",
            "gen_ai.response.id": response["id"],
            "gen_ai.usage.output_tokens": "2",
            "gen_ai.request.max_tokens": "2",
            "gen_ai.request.temperature": 0.5,
            "gen_ai.response.finish_reasons": {"values": [{"stringValue": "max_output_tokens"}]},
        }.items():
            assert root["attributes"][name] == value, name
        phases = [spans[name] for name in ("queue", "prefill", "decode", "commit")]
        assert {(span["traceId"], span["parentSpanId"]) for span in phases} == {(TRACE, root["spanId"])}
        times = [root["startTimeUnixNano"], *(span["endTimeUnixNano"] for span in phases)]
        assert [*map(int, times)] == sorted(map(int, times)) and times[-1] == root["endTimeUnixNano"]
        assert "secret words" not in str(collector.bodies) and set(collector.headers) == {"a b"}


async def test_sockets_other_doors_and_failures_have_spans_too(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = script({"match": "fail", "steps": [{"fail": "broken"}]}, text("a"))
    async with collecting(monkeypatch) as (collector, config):
        async with serving(replies, config=config) as running, aiohttp.ClientSession() as http:
            connection = await Connection.open(running.base_url)
            for asked in ("x", "fail"):
                stream = await connection.create({"model": "m", "input": asked, "store": False})
                with contextlib.suppress(ApiError):
                    await stream.final()
            await connection.close()
            said = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
            async with http.post(f"{running.base_url}/chat/completions", json=said, headers=HEADERS) as answer:
                assert answer.status == 200
        roots = [span for span in collector.spans() if span["kind"] == tracing.SERVER]
        assert [span.get("parentSpanId") for span in roots] == [None, None, CALLER]
        assert [span["attributes"].get("error.type") for span in roots] == [None, "server_error", None]
        assert roots[1]["status"] == {"code": tracing.ERROR}


async def test_no_answer_waits_for_a_collector(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with collecting(monkeypatch) as (collector, config):
        collector.status = 500
        async with serving(script(text("a")), config=config) as running, aiohttp.ClientSession() as http:
            for _ in range(3):
                async with http.post(f"{running.base_url}/responses", json={"model": "m", "input": "x"}) as answer:
                    assert answer.status == 200
                assert running.server.tracer is not None and running.server.tracer._sending is not None
                await running.server.tracer._sending
        assert len(collector.bodies) == 3
    assert sum("spans cannot be sent" in record.getMessage() for record in caplog.records) == 1
    assert ServerConfig().server.otlp == "", "off unless it is asked for"
