"""The shipped model through every door: the same question gets the same answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from fulgur.client import Connection
from fulgur.edit.ask import edit_item
from fulgur.edit.embedded import Embedded
from fulgur.edit.region import Target, locate
from fulgur.server import app
from fulgur.server.config import Model, ServerConfig
from fulgur.workspace.folders import embedded_models

pytestmark = pytest.mark.skipif(not embedded_models(), reason="this checkout has no embedded model")
SHOP = '''"""Prices of a small shop."""

import json


def load_prices(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def cheapest(prices):
    best = None
    for name, price in prices.items():
        if best is None or price < prices[best]:
            best = name
    return best
'''
CURSORS = [
    "best = ",
    "json.",
    "prices.items(",
    "if best is None or ",
    "    return ",
    "with open(path, enc",
    "def cheapest(",
]


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    yield Embedded.open()


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    config = ServerConfig(models={"m": Model(backend="local", path=str(embedded_models()[0]))})
    config.server.port, config.server.store = 0, ":memory:"
    running = await app.start(config)
    try:
        yield running.base_url
    finally:
        await running.close()


async def completed(session: aiohttp.ClientSession, url: str, **body: Any) -> str:
    async with session.post(f"{url}/completions", json={"model": "m", **body}) as answer:
        data = await answer.json()
        assert answer.status == 200, data
        return str(data["choices"][0]["text"])


async def test_completions_over_http_are_those_in_process(embedded: Embedded) -> None:
    async with served() as url, aiohttp.ClientSession() as session:
        for mark in CURSORS:
            at = SHOP.index(mark) + len(mark)
            prefix, suffix = SHOP[:at], SHOP[at:]
            for one_line in (True, False):
                asked = embedded.completion("shop.py", prefix, suffix, 24, one_line=one_line)
                body = {"prompt": prefix, "suffix": suffix, "path": "shop.py", "max_tokens": 24}
                if one_line:
                    body["stop"] = ["\n"]
                assert await completed(session, url, **body) == embedded.ask([asked])[0].text, (mark, one_line)
        # Without a suffix it is the end of a file; the sum is what `fulgur complete` writes there.
        add = "def add(a, b):\n    return "
        assert (await completed(session, url, prompt=add, stop=["\n"])).startswith("a + b")
        # An editor sends the whole file: it is cut around the cursor.
        long = "value = 1\n" * 2000
        short = await completed(session, url, prompt=add, suffix="\n", stop=["\n"], max_tokens=8)
        assert await completed(session, url, prompt=long + add, suffix="\n" + long, stop=["\n"], max_tokens=8)
        assert short.startswith("a + b")


async def test_a_streamed_completion_is_the_whole_one(embedded: Embedded) -> None:
    prefix = SHOP[: SHOP.index("json.") + 5]
    body = {"model": "m", "prompt": prefix, "suffix": "", "path": "shop.py", "stop": ["\n"], "stream": True}
    async with served() as url, aiohttp.ClientSession() as session:
        whole = await completed(session, url, **{key: value for key, value in body.items() if key != "stream"})
        async with session.post(f"{url}/completions", json=body) as answer:
            lines = [line async for line in answer.content if line.startswith(b"data: {")]
    import json

    pieces = [choice["text"] for line in lines for choice in json.loads(line[6:])["choices"]]
    assert "".join(pieces) == whole and len(pieces) > 1


@pytest.mark.parametrize(
    "instruction", ["rename best to lowest", "add type hints", "sing a song", "use `<|end|>` here"]
)
async def test_edits_over_the_socket_are_those_in_process(embedded: Embedded, instruction: str) -> None:
    from pathlib import Path

    region = locate(SHOP, Target(Path("shop.py"), "cheapest"))
    [reply] = embedded.ask([embedded.edit("shop.py", region.above, region.text, region.below, instruction)])
    async with served() as url:
        connection = await Connection.open(url)
        try:
            body = {"model": "m", "input": [edit_item("shop.py", region, instruction)], "store": False}
            response = await (await connection.create(body)).final()
        finally:
            await connection.close()
    said = "".join(part["text"] for item in response.output for part in item["content"])
    assert said == reply.text
