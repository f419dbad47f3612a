"""Bodies of the right shape with the wrong things in them: an answer or a 4xx, never a traceback."""

from __future__ import annotations

import copy
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yarl

from fulgur.bench.chat_model import write_chat_model
from fulgur.server import app
from fulgur.server.config import Model, ServerConfig

SECONDS = float(os.environ.get("FULGUR_FUZZ_SECONDS", "4"))
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
BODIES: dict[str, dict[str, Any]] = {
    "responses": {
        "model": "m",
        "max_output_tokens": 4,
        "store": False,
        "instructions": "be brief",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": "x"},
            {"type": "additional_tools", "tools": [TOOL]},
            {"role": "user", "content": "go"},
        ],
        "tools": [TOOL, {"type": "namespace", "name": "n", "tools": [TOOL]}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "f"}]},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
        "reasoning": {"effort": "low"},
        "metadata": {"a": "b"},
        "include": ["reasoning.encrypted_content"],
    },
    "responses/input_tokens": {"model": "m", "input": [{"role": "user", "content": "x"}]},
    "responses/compact": {"model": "m", "input": [{"role": "user", "content": "x"}]},
    "chat/completions": {
        "model": "m",
        "max_tokens": 4,
        "messages": [
            {"role": "system", "content": "x"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}],
            },
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ],
        "tools": [{"type": "function", "function": TOOL}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
        "stop": ["x"],
        "prediction": {"type": "content", "content": [{"type": "text", "text": "x"}]},
    },
    "completions": {"model": "m", "prompt": ["x"], "stop": ["z"], "max_tokens": 5, "logit_bias": {"1": 1}, "n": 2},
    "messages": {
        "model": "m",
        "max_tokens": 4,
        "system": [{"type": "text", "text": "x"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text"}]}]},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "strict": True}],
        "tool_choice": {"type": "auto", "name": "f"},
        "stop_sequences": ["x"],
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    },
    "messages/count_tokens": {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    "api/chat": {
        "model": "m",
        "stream": False,
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "tool", "tool_name": "f", "content": "x"},
        ],
        "tools": [{"type": "function", "function": TOOL}],
        "options": {"num_predict": 4, "stop": ["x"], "seed": 1, "temperature": 0.5},
        "format": {"type": "object"},
        "think": False,
    },
    "api/generate": {"model": "m", "prompt": "x", "raw": True, "options": {"num_predict": 4}, "stream": False},
    "api/show": {"model": "m"},
    "infill": {"model": "m", "input_prefix": "x", "input_suffix": "y", "prompt": "", "n_predict": 4, "stop": ["x"]},
    "fim/completions": {"model": "m", "prompt": "x", "suffix": "y", "max_tokens": 4, "random_seed": 1},
    "tokenize": {"model": "m", "content": "x", "add_special": True, "with_pieces": True},
    "detokenize": {"model": "m", "tokens": [1, 2]},
    "embeddings": {"model": "m", "input": ["x"]},
    "api/embed": {"model": "m", "input": ["x"]},
    "edits/suggest": {
        "model": "m",
        "path": "a.py",
        "text": "def f(a):\n    return a\n",
        "instruction": "rename a to b",
        "range": {"start": {"line": 0, "character": 0}, "end": {"line": 1, "character": 3}},
        "position": {"line": 0, "character": 5},
    },
}
WRONG: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "x",
    [],
    {},
    [None],
    [1],
    [[]],
    [{}],
    {"type": "x"},
    {"type": []},
    2**31,
    2**63,
    -(2**70),
    1e308,
    float("nan"),
    "\ud800",
    "\0\x1b[2J",
    "<|im_end|>" * 9,
    "../../etc/passwd",
    "x" * 100_000,
    [2**63],
    [-1],
    [[[[[[[[[[]]]]]]]]]],
]
# What comes in the address: of a response that is there (ID), and of none.
ADDRESSES = [
    f"responses/{name}{rest}?{query}"
    for name in ("ID", "resp_x", "%00", "%ff", "..%2f..", "%F0%9F%98%80" * 50)
    for rest in ("", "/input_items")
    for query in (
        "stream=true&starting_after=VALUE", "limit=VALUE", "after=VALUE", "before=VALUE", "order=VALUE", "VALUE",
        "include[]=VALUE",
    )
]  # fmt: skip
VALUES = ["", "-1", "0", "1.5", "nan", "9" * 30, "9" * 5000, "%00", "%ff", "x", "%C2%B2", "true"]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a body."""
    found = []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        found += [(value, key), *places(inner)]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model") / "random", d_model=64, n_layers=1)


async def test_fuzz_bodies_are_answered_or_refused(folder: Path) -> None:
    config = ServerConfig(models={"m": Model(backend="local", path=str(folder), context=2048)})
    config.server.port, config.server.store = 0, ":memory:"
    running = await app.start(config)
    session = aiohttp.ClientSession()
    try:
        for door in BODIES:
            await fuzz(session, running.base_url.removesuffix("/v1"), door)
    finally:
        await session.close()
        await running.close()


async def fuzz(session: aiohttp.ClientSession, root: str, door: str) -> None:
    choose = random.Random(door)
    ends = time.monotonic() + SECONDS / len(BODIES)
    while time.monotonic() < ends:
        body = copy.deepcopy(BODIES[door])
        for _ in range(choose.choice([1, 1, 1, 2, 4])):
            container, key = choose.choice(places(body))
            container[key] = copy.deepcopy(choose.choice(WRONG))
        async with session.post(f"{root}/{door}", data=json.dumps(body).encode()) as answer:
            said = await answer.text()
            assert answer.status < 500 and "server_error" not in said, (door, said, body)


async def test_addresses_are_answered_or_refused(folder: Path) -> None:
    config = ServerConfig(models={"m": Model(backend="scripted")})
    config.server.port, config.server.store = 0, ":memory:"
    running = await app.start(config)
    session = aiohttp.ClientSession()
    try:
        async with session.post(f"{running.base_url}/responses", json={"model": "m", "input": "hello"}) as answer:
            there = (await answer.json())["id"]
        for address in ADDRESSES:
            for value in VALUES:
                url = f"{running.base_url}/{address.replace('ID', there).replace('VALUE', value)}"
                async with session.get(yarl.URL(url, encoded=True)) as answer:
                    said = await answer.text()
                    assert answer.status < 500 and "server_error" not in said, (url, said)
    finally:
        await session.close()
        await running.close()
