"""The doors of other APIs: the same answers, errors in their shapes, the same limits and keys."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from serving import script, serving, text
from test_http import asking

from fulgur.backends.base import Capabilities
from fulgur.bench.chat_model import write_chat_model
from fulgur.server import app, auth
from fulgur.server.config import Model, Pool, Price, ServerConfig
from fulgur.server.doors import ollama
from fulgur.server.doors.openapi import OPERATIONS, document
from fulgur.server.pools import PoolState

TOOL = {"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {}}}
REPLIES = script(
    {"match": "weather", "after": "message", "steps": [{"reasoning": "hm"}, {"text": "I look."},
                                                       {"call": "weather", "arguments": {"city": "Oslo"}}]},
    {"after": "function_call_output", "steps": [{"text": "It rains."}]},
    {"match": "break", "steps": [{"text": "begun"}, {"fail": "gone"}]},
)  # fmt: skip


def asked(words: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": words}], **more}


def events(stream: str) -> list[dict[str, Any]]:
    found = [json.loads(block.split("data: ", 1)[1]) for block in stream.strip().split("\n\n")]
    names = [block.split("\n")[0] for block in stream.strip().split("\n\n")]
    assert names == [f"event: {event['type']}" for event in found]
    return found


async def test_messages() -> None:
    async with asking(REPLIES) as (_, ask):
        status, first = await ask("POST", "/messages", asked("the weather?", tools=[TOOL], system="Be brief."))
        assert status == 200 and first["type"] == "message" and first["stop_reason"] == "tool_use"
        assert [block["type"] for block in first["content"]] == ["thinking", "text", "tool_use"]
        call = first["content"][2]
        assert call["name"] == "weather" and call["input"] == {"city": "Oslo"}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "rain"}]}
        history = [
            {"role": "user", "content": "the weather?"},
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result]},
        ]
        body = {"model": "m", "max_tokens": 100, "messages": history, "tools": [TOOL]}
        assert (await ask("POST", "/messages", body))[1]["content"] == [{"type": "text", "text": "It rains."}]
        assert (await ask("POST", "/messages/count_tokens", body))[1]["input_tokens"] > 10

        _, stream = await ask("POST", "/messages", asked("the weather?", tools=[TOOL], stream=True))
        seen = events(stream)
        assert [event["type"] for event in seen if not event["type"].endswith("delta")] == [
            "message_start",
            *["content_block_start", "content_block_stop"] * 3,
            "message_stop",
        ]
        assert seen[0]["message"]["usage"]["input_tokens"] > 0
        assert [event["index"] for event in seen if event["type"] == "content_block_start"] == [0, 1, 2]
        arguments = "".join(event["delta"].get("partial_json", "") for event in seen if "delta" in event)
        assert json.loads(arguments) == {"city": "Oslo"}
        assert seen[-2]["delta"]["stop_reason"] == "tool_use" and seen[-2]["usage"]["output_tokens"] > 0
        _, stream = await ask("POST", "/messages", asked("break", stream=True))
        assert events(stream)[-1] == {"type": "error", "error": {"type": "api_error", "message": "gone"}}


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"model": "other"}, 404, "not_found_error"),
        ({"messages": []}, 400, "messages"),
        ({"max_tokens": None}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"temperature": 9}, 400, "temperature"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400, "web_search_20250305"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, 400, "tool_choice"),
        ({"mcp_servers": [{"url": "x"}]}, 400, "mcp_servers"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, 400, "document"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, 400, "images"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, 400, "tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]}, 400, "call_id"),
        ({"messages": [{"role": "user", "content": ""}]}, 400, "messages"),
        ({"system": [{"type": "image", "source": {}}]}, 400, "system"),
        ({"system": [{"type": "text", "text": 5}]}, 400, "system"),
        ({"thinking": {"type": "banana"}}, 400, "thinking.type"),
    ],
)
async def test_messages_refuse_in_their_own_shape(change: dict[str, Any], status: int, said: str) -> None:
    async with asking(capabilities=Capabilities(context=1000)) as (_, ask):
        found, answer = await ask("POST", "/messages", asked("x") | change)
        assert found == status and answer["type"] == "error" and said in json.dumps(answer)


async def test_what_ends_an_answer_and_what_begins_it(tmp_path: Path) -> None:
    folder = write_chat_model(tmp_path / "random", context=512, d_model=64, n_layers=1)
    config = ServerConfig(models={"m": Model(backend="local", path=str(folder))})
    config.server.port, config.server.store = 0, ":memory:"
    running = await app.start(config)
    root = running.base_url.removesuffix("/v1")

    async with aiohttp.ClientSession() as http:

        async def ask(path: str, body: dict[str, Any]) -> Any:
            async with http.post(root + path, json=body) as answer:
                said = await (answer.json() if answer.content_type == "application/json" else answer.text())
                assert answer.status == 200, said
                return said, answer.headers.get("x-fulgur-ignored")

        try:
            # Random weights may write bytes that are no text; then another word is said.
            for said in ("tell", "say", "write", "speak", "list", "name", "sing", "count"):
                whole, _ = await ask("/v1/messages", asked(said, max_tokens=20))
                text = whole["content"][0]["text"]
                if "\ufffd" not in text:
                    break
            assert (whole["stop_reason"], whole["stop_sequence"]) == ("max_tokens", None)
            word = text[len(text) // 2 :][:3]
            cut, _ = await ask("/v1/messages", asked(said, max_tokens=20, stop_sequences=["no such words", word]))
            assert (cut["stop_reason"], cut["stop_sequence"]) == ("stop_sequence", word)
            assert cut["content"][0]["text"] == text[: text.index(word)]
            stream, _ = await ask("/v1/messages", asked(said, max_tokens=20, stop_sequences=[word], stream=True))
            assert events(stream)[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": word}

            # A last message of the assistant is gone on with, by Anthropic's and by Ollama's rules.
            start = (await ask("/v1/messages", asked(said, max_tokens=8)))[0]["content"][0]["text"]
            words = [{"role": "user", "content": said}, {"role": "assistant", "content": start}]
            rest, ignored = await ask(
                "/v1/messages",
                {"model": "m", "max_tokens": 4, "messages": words, "thinking": {"type": "enabled", "budget_tokens": 9}},
            )
            assert ignored == "thinking.budget_tokens"
            assert text.startswith(start + rest["content"][0]["text"])
            ollama = {"model": "m", "messages": words, "options": {"num_predict": 4}, "stream": False}
            told, _ = await ask("/api/chat", ollama)
            assert told["message"]["content"] == rest["content"][0]["text"]
            assert told["eval_duration"] > 1 and told["prompt_eval_duration"] > 1

            # An error names the field as its door does.
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "banana"}}}
            fields = {"type": "object", "properties": {"a": {"const": "x" * 99}}, "required": ["a"]}
            small = {"type": "json_schema", "json_schema": {"name": "x", "schema": fields}}
            long = {"role": "user", "content": "word " * 900}
            for path, body, param in (
                ("chat/completions", asked("x", response_format=form), "response_format"),
                ("chat/completions", {"model": "m", "messages": [long]}, "messages"),
                ("chat/completions", asked("x", max_tokens=3, response_format=small), "max_tokens"),
                ("chat/completions", asked("x", logit_bias={"99999999": 1}), "logit_bias"),
                ("completions", {"model": "m", "prompt": [99999999]}, "prompt"),
            ):
                async with http.post(f"{root}/v1/{path}", json=body) as answer:
                    assert answer.status == 400 and (await answer.json())["error"]["param"] == param
        finally:
            await running.close()


async def test_ollama() -> None:
    async with asking(REPLIES) as (_, ask):
        assert [model["name"] for model in (await ask("GET", "//api/tags"))[1]["models"]] == ["m"]
        assert "insert" in (await ask("POST", "//api/show", {"model": "m"}))[1]["capabilities"]
        assert (await ask("GET", "//api/version"))[0] == 200
        tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
        messages: list[dict[str, Any]] = [{"role": "user", "content": "the weather?"}]
        body = {"model": "m:latest", "messages": messages, "tools": tools, "options": {"num_predict": -1, "seed": 1}}
        _, stream = await ask("POST", "//api/chat", body)
        lines = [json.loads(line) for line in stream.splitlines()]
        assert "".join(line["message"]["content"] for line in lines) == "I look."
        assert "".join(line["message"].get("thinking", "") for line in lines) == "hm"
        calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
        assert [call["function"] for call in calls] == [{"name": "weather", "arguments": {"city": "Oslo"}}]
        assert lines[-1]["done"] and lines[-1]["eval_count"] > 0 and not lines[0]["done"]
        messages += [
            {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "tool_name": "weather", "content": "r"},
        ]
        _, whole = await ask("POST", "//api/chat", body | {"stream": False})
        assert whole["message"]["content"] == "It rains." and whole["done_reason"] == "stop"
        _, whole = await ask("POST", "//api/generate", {"model": "m", "prompt": "hi", "stream": False})
        assert whole["response"] == "You said: hi"
        _, whole = await ask("POST", "//api/generate", {"model": "m", "prompt": "a", "suffix": "b", "stream": False})
        assert whole["response"] == "You said: a␣b"
        assert (await ask("POST", "//api/generate", {"model": "m"}))[1]["done_reason"] == "load"
        for path, wrong in (
            ("chat", {"model": "x", "messages": messages}),
            ("chat", {"model": "m", "messages": messages, "options": {"mirostat": 2}}),
            ("chat", {"model": "m", "messages": messages, "options": {"temperature": "hot"}}),
            ("chat", {"model": "m", "messages": messages, "format": "yaml"}),
            ("generate", {"model": "m", "prompt": "x", "context": [1]}),
            ("generate", {"model": "m", "prompt": "x", "raw": True, "format": "json"}),
            ("embed", {"model": "m", "input": "x"}),
        ):
            status, answer = await ask("POST", f"//api/{path}", wrong)
            assert status in (400, 404) and isinstance(answer["error"], str), wrong


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ("png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
        ("jpeg", b"\xff\xd8\xff\xe0\0\x10JFIF"),
        ("webp", b"RIFF\x24\0\0\0WEBPVP8 "),
        ("gif", b"GIF89a\x01\0\x01\0"),
    ],
)
async def test_an_ollama_image_is_named_after_its_first_bytes(kind: str, first: bytes) -> None:
    data = base64.b64encode(first).decode()
    assert ollama._image(data, "images[0]")["image_url"] == f"data:image/{kind};base64,{data}"
    async with asking(script(text("seen"))) as (_, ask):
        for path, body in (
            ("chat", {"messages": [{"role": "user", "content": "look", "images": [data]}]}),
            ("generate", {"prompt": "look", "images": [data]}),
        ):
            status, _ = await ask("POST", f"//api/{path}", {"model": "m", "stream": False, **body})
            assert status == 200


async def test_an_ollama_image_of_another_kind_is_refused() -> None:
    async with asking(script(text("seen"))) as (_, ask):
        for data in (
            "",
            "no base64",
            base64.b64encode(b"RIFF\x24\0\0\0WAVEfmt ").decode(),
            "data:image/png;base64,iVBO",
        ):
            body = {"model": "m", "messages": [{"role": "user", "content": "look", "images": [data]}]}
            status, answer = await ask("POST", "//api/chat", body)
            assert status == 400 and "PNG, JPEG, WebP or GIF" in answer["error"], data


async def test_fill_in_the_middle() -> None:
    async with asking(script(text("between"))) as (_, ask):
        infill = {"input_prefix": "a\n", "prompt": "b", "input_suffix": "c", "n_predict": 9, "cache_prompt": True}
        status, answer = await ask("POST", "//infill", infill | {"input_extra": [], "samplers": ["top_k"]})
        assert (status, answer["content"], answer["stop"]) == (200, "between", True)
        wanted = infill | {"response_fields": ["content", "timings/predicted_n"]}
        assert (await ask("POST", "//infill", wanted))[1].keys() == {"content", "timings/predicted_n"}
        assert (await ask("POST", "//infill", infill | {"n_predict": 0}))[1]["content"] == ""
        _, stream = await ask("POST", "//infill", infill | {"stream": True})
        chunks = [json.loads(line[6:]) for line in stream.splitlines() if line]
        assert "".join(chunk["content"] for chunk in chunks) == "between" and chunks[-1]["stop"]
        assert (await ask("POST", "//infill", infill | {"grammar": "x"}))[1]["error"]["param"] == "grammar"
        fim = {"model": "m", "prompt": "a", "suffix": "b", "max_tokens": 9, "random_seed": 4}
        _, answer = await ask("POST", "/fim/completions", fim)
        assert answer["choices"][0]["message"]["content"] == "between" and answer["usage"]["total_tokens"] > 0
        _, stream = await ask("POST", "/fim/completions", fim | {"stream": True})
        deltas = [json.loads(line[6:])["choices"] for line in stream.splitlines() if line.startswith("data: {")]
        assert "".join(c[0]["delta"].get("content", "") for c in deltas if c) == "between"


async def test_keys_origins_and_what_is_open() -> None:
    key, record = auth.new_key("ann")
    async with serving(config=ServerConfig(keys=[record])) as running, aiohttp.ClientSession() as session:
        root = running.base_url.removesuffix("/v1")
        for path in ("/v1/messages", "/infill", "/api/chat", "/v1/fim/completions", "/tokenize", "/v1/embeddings"):
            for headers in ({}, {"x-api-key": "fg-wrong"}):
                async with session.post(root + path, json={}, headers=headers) as answer:
                    assert answer.status == 401, path
            async with session.post(root + path, json={}, headers={"x-api-key": key}) as answer:
                assert answer.status in (400, 404), path
            foreign = {"x-api-key": key, "Origin": "https://evil.example"}
            async with session.post(root + path, json={}, headers=foreign) as answer:
                assert answer.status == 403, path
        for path, status in (("/", 200), ("/docs", 200), ("/openapi.json", 200), ("/health", 200), ("/status", 401),
                             ("/props", 401), ("/api/tags", 401)):  # fmt: skip
            async with session.get(root + path) as answer:
                assert answer.status == status, path
                if path in ("/", "/docs"):
                    policy = answer.headers["Content-Security-Policy"]
                    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
                    assert "http" not in (await answer.text()).replace("https://", "")  # nothing from elsewhere
        async with session.get(f"{root}/status", headers={"x-api-key": key}) as answer:
            assert [model["name"] for model in (await answer.json())["models"]] == ["m"]


async def test_a_request_has_the_name_that_each_client_looks_for() -> None:
    async with serving() as running, aiohttp.ClientSession() as session:
        for path, body in (("/messages", asked("hi")), ("/messages", {}), ("/chat/completions", asked("hi"))):
            async with session.post(running.base_url + path, json=body) as answer:
                named = answer.headers.get("request-id")
                assert named == (answer.headers["x-request-id"] if path == "/messages" else None)


async def test_an_answer_under_way_is_seen_and_keeps_the_server_awake() -> None:
    played = script({"steps": [{"tokens": 9000}]}, rate=100)
    async with serving(played) as running, aiohttp.ClientSession() as session:
        root = running.base_url.removesuffix("/v1")
        for path in ("/v1/chat/completions", "/v1/messages", "/api/chat"):
            async with session.post(root + path, json={**asked("go on"), "stream": True}) as answer:
                await answer.content.readany()
                running.server.last_request -= 3600  # it takes long
                assert running.server.idle_seconds() == 0.0, path
                async with session.get(f"{root}/status") as status:
                    assert (await status.json())["running"] == 1, path
            while running.server.under_way() != (0, 0):
                await asyncio.sleep(0.01)
            assert running.server.idle_seconds() < 60, "from its end on"


async def test_what_is_described_is_there() -> None:
    async with serving() as running, aiohttp.ClientSession() as session:
        root = running.base_url.removesuffix("/v1")
        described = {path for _, path, *_ in OPERATIONS}
        aliases = {"/", "/docs", "/openapi.json", "/healthz", "/api/embed", "/api/embeddings"}
        aliases |= {path.removeprefix("/v1") for path in described} | {f"/v1{path}" for path in described}
        served = {resource.canonical for resource in app.build(running.server).router.resources()}
        served = {path.rstrip("/") or "/" for path in served} - {"/v1/models/{id}", "/models/{id}"}
        assert served - described - aliases == set()
        for method, path, *_ in OPERATIONS:
            async with session.request(method, root + path.replace("{id}", "resp_none"), json={}) as answer:
                assert answer.status != 405 and "There is no endpoint" not in await answer.text(), path
        assert (await (await session.post(f"{root}/v1/embeddings", json={"model": "m"})).json())["error"]["code"]
        tokenize = await session.post(f"{root}/tokenize", json={"content": "x"})
        assert tokenize.status == 400 and "not available on this server" in await tokenize.text()
    for operations in document()["paths"].values():
        for operation in operations.values():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            if content:
                name = content["schema"]["$ref"].rpartition("/")[2]
                assert "rest" not in document()["components"]["schemas"][name]["properties"]


TIERED: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
    "/v1/fim/completions": {"prompt": "x", "suffix": "y"},
    "/infill": {"input_prefix": "x", "input_suffix": "y"},
    "/api/chat": {"messages": [{"role": "user", "content": "x"}]},
    "/api/generate": {"prompt": "x"},
}


@pytest.mark.parametrize("stream", [False, True])
async def test_every_door_serves_in_the_tier_that_was_asked_for(stream: bool) -> None:
    able = Capabilities(chat=True, tools=True, fim=True, context=1000)
    price = Model(backend="scripted", price=Price(output=1e6))
    pool = PoolState("p", Pool(concurrent=4))
    async with serving(script(text("a b")), capabilities=able, pool=pool, model=price) as running:
        async with aiohttp.ClientSession(running.base_url.removesuffix("v1")) as session:
            for path, body in TIERED.items():
                asked = {"model": "m", "stream": stream, "service_tier": "priority", **body}
                async with session.post(path, json=asked) as answer:
                    said = await answer.text()
                    assert answer.status == 200, said
                    assert answer.headers["x-fulgur-tier"] == "priority" and "x-fulgur-ignored" not in answer.headers
                    if path == "/v1/messages":
                        assert '"service_tier":"priority"' in said
                async with session.post(path, json={**asked, "service_tier": "first class"}) as answer:
                    assert answer.status == 400, path
            async with session.post(
                "/v1/messages", json={"model": "m", **TIERED["/v1/messages"], "service_tier": "standard_only"}
            ) as answer:
                assert (await answer.json())["usage"]["service_tier"] == "standard"
        rows = {used.tier: used for used in await running.server.store.usage(1)}
        assert rows["priority"].answers == len(TIERED) and rows["default"].answers == 1
        assert rows["priority"].output == 2 * len(TIERED) and rows["priority"].cost == 4 * len(TIERED)
