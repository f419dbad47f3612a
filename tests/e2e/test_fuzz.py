"""Broken input, bounded and seeded: no 500, no dead socket, no engine left running."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from live_server import LiveServer
from openapi import SCHEMA

FRAMES = 1500
SEED = 20261115

VALID: list[dict[str, Any]] = [
    {"type": "response.create", "model": "scripted", "input": "hello", "store": False},
    {
        "type": "response.create",
        "model": "scripted",
        "stream_id": "lane",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "reasoning": {"effort": "low"},
        "include": ["reasoning.encrypted_content"],
        "generate": False,
    },
    {"type": "response.create", "model": "scripted", "input": [{"type": "compaction", "encrypted_content": "eJw="}]},
    {"type": "response.steer", "previous_response_id": "resp_x", "input": "go", "boundary": "token"},
    {"type": "response.cancel", "response_id": "resp_x"},
    {"type": "response.interrupt", "response_id": "resp_x", "mode": "discard_partial_items"},
    {"type": "response.prefill", "model": "scripted", "input": "ty", "prefill_id": "p"},
]
JUNK: list[Any] = [
    None,
    True,
    -1,
    1e308,
    2**70,
    "",
    "x" * 3000,
    "\ud83d",
    [],
    {},
    [[]],
    {"": 0},
    "resp_x",
    "\x00",
    [None],
]


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with LiveServer({"match": "long", "steps": [{"tokens": 50}]}) as server:
        yield server


def mutate(value: Any, chance: random.Random) -> Any:
    """The same thing with something in it replaced, dropped, added or repeated."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(list(value))
        changed = dict(value)
        action = chance.random()
        if action < 0.2:
            del changed[name]
        elif action < 0.3:
            changed[chance.choice(["model", "input", "stream_id", "extra", "type", "tools"])] = chance.choice(JUNK)
        else:
            changed[name] = mutate(value[name], chance)
        return changed
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [*value[:place], mutate(value[place], chance), *value[place + 1 :] * chance.randrange(3)]
    return chance.choice(JUNK)


def broken_text(frame: dict[str, Any], chance: random.Random) -> str:
    """Not JSON any more, most of the time."""
    text = json.dumps(frame)
    place = chance.randrange(len(text))
    return text[:place] + chance.choice(["", "}", "[", '"', "\\", "\x01", "∞", "{" * 300]) + text[place + 1 :]


def test_frames(live: LiveServer) -> None:
    async def main() -> None:
        chance = random.Random(SEED)
        failures: list[str] = []
        async with aiohttp.ClientSession() as session:
            for _ in range(FRAMES // 100):
                async with session.ws_connect(f"{live.base_url}/responses", max_msg_size=0) as socket:
                    for _ in range(100):
                        frame = chance.choice(VALID)
                        for _ in range(chance.randrange(1, 4)):
                            frame = mutate(frame, chance)
                        if chance.random() < 0.2:
                            await socket.send_str(broken_text(chance.choice(VALID), chance))
                        elif chance.random() < 0.05:
                            await socket.send_bytes(chance.randbytes(20))
                        else:
                            await socket.send_str(json.dumps(frame))
                    await drain(socket, failures)
        assert not failures, failures[:3]

    asyncio.run(asyncio.wait_for(main(), 80))
    assert live.backend.running == 0
    assert not live.server.runs


async def drain(socket: aiohttp.ClientWebSocketResponse, failures: list[str]) -> None:
    """The socket still answers a good create; what came before it held no server error."""
    await socket.send_json({**VALID[0], "input": "still there?"})
    while True:
        message = await socket.receive(timeout=20)
        assert message.type is aiohttp.WSMsgType.TEXT, "the socket died"
        event = json.loads(message.data)
        if event["type"] == "error" and event["status"] >= 500:
            failures.append(message.data)
        if event["type"] == "response.failed" and event["response"]["error"]["code"] == "server_error":
            failures.append(message.data)
        if event["type"] == "response.completed" and "still there?" in message.data:
            return


schema = schemathesis.openapi.from_dict(SCHEMA)


@schema.parametrize()
@settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_http(case: schemathesis.Case, live: LiveServer) -> None:
    """Every body the schema allows, and many it does not, gets an answer below 500."""
    answer = case.call(base_url=live.base_url, timeout=20)
    assert answer.status_code < 500, (case.as_curl_command(), answer.text)
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert error["message"] and error["code"], answer.text
