"""The shipped model through every door: the same question gets the same answer."""

from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from agent_world import agent_on

from fulgur.client import Connection
from fulgur.client.local import write_ready
from fulgur.edit.editor import Proposal, locate, propose
from fulgur.edit.region import parse_target
from fulgur.eval.asker import Asker
from fulgur.protocol.agent import TurnDone
from fulgur.server import app
from fulgur.server.config import Model, ServerConfig
from fulgur.text.code_prompt import completion_request, edit_request, healed
from fulgur.text.sure import SURE
from fulgur.ui.cli import main
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
def embedded() -> Iterator[Asker]:
    yield Asker(embedded_models()[0])


@asynccontextmanager
async def served(name: str = "m") -> AsyncIterator[Any]:
    config = ServerConfig(models={name: Model(backend="local", path=str(embedded_models()[0]))})
    config.server.port, config.server.store = 0, ":memory:"
    running = await app.start(config)
    try:
        yield running
    finally:
        await running.close()


async def completed(session: aiohttp.ClientSession, url: str, **body: Any) -> str:
    async with session.post(f"{url}/completions", json={"model": "m", **body}) as answer:
        data = await answer.json()
        assert answer.status == 200, data
        return str(data["choices"][0]["text"])


async def test_completions_over_http_are_those_in_process(embedded: Asker) -> None:
    async with served() as running, aiohttp.ClientSession() as session:
        url = running.base_url
        for mark in CURSORS:
            at = SHOP.index(mark) + len(mark)
            prefix, suffix = SHOP[:at], SHOP[at:]
            for one_line in (True, False):
                asked = completion_request(
                    embedded.count, embedded.context, "shop.py", prefix, suffix, 24, one_line=one_line
                )
                body = {"prompt": prefix, "suffix": suffix, "path": "shop.py", "max_tokens": 24}
                if one_line:
                    body["stop"] = ["\n"]
                [reply] = embedded.ask([asked])
                whole = embedded.ask([asked], search=True)[0] if one_line else reply
                assert await completed(session, url, **body, min_probability=0) == whole.text, (mark, one_line)
                if one_line:  # shown as far as the model is sure of it
                    probability = math.exp(reply.log_probability)
                    for least in (probability * 0.99, min(probability * 1.01, 1.0), 0.5, 0.9):
                        shown = await completed(session, url, **body, min_probability=least)
                        assert shown == reply.sure(least), (mark, least)
                    assert await completed(session, url, **body) == reply.sure(SURE)
        # Without a suffix it is the end of a file; the sum is what `fulgur complete` writes there.
        add = "def add(a, b):\n    return "
        assert (await completed(session, url, prompt=add, stop=["\n"])).startswith("a + b")
        # An editor sends the whole file: it is cut around the cursor.
        long = "value = 1\n" * 2000
        ask = functools.partial(completed, session, url, stop=["\n"], max_tokens=8, min_probability=0)
        assert (await ask(prompt=add, suffix="\n")).startswith("a + b")
        assert await ask(prompt=long + add, suffix="\n" + long)


async def test_a_streamed_completion_is_the_whole_one(embedded: Asker) -> None:
    prefix = SHOP[: SHOP.index("json.") + 5]
    body = {"model": "m", "prompt": prefix, "suffix": "", "path": "shop.py", "max_tokens": 16, "stream": True}
    async with served() as running, aiohttp.ClientSession() as session:
        url = running.base_url
        whole = await completed(session, url, **{**body, "stream": False})
        async with session.post(f"{url}/completions", json=body) as answer:
            lines = [line async for line in answer.content if line.startswith(b"data: {")]
    pieces = [choice["text"] for line in lines for choice in json.loads(line[6:])["choices"]]
    assert "".join(pieces) == whole and len(pieces) > 1


async def test_editors_get_the_same_completion_at_every_door() -> None:
    """llama.vim's, Codestral's and Ollama's way to ask, beside the one that `fulgur complete` takes."""
    async with served() as running, aiohttp.ClientSession() as session:
        root = running.base_url.removesuffix("/v1")

        async def ask(path: str, body: dict[str, Any]) -> Any:
            async with session.post(root + path, json=body) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json()

        for mark in CURSORS:
            at = SHOP.index(mark) + len(mark)
            prefix, suffix = SHOP[:at], SHOP[at:]
            for stop in ([], ["\n"]):
                body: dict[str, Any] = {"prompt": prefix, "suffix": suffix, "stop": stop, "max_tokens": 16}
                here = await completed(session, running.base_url, **body)
                line = prefix.rfind("\n") + 1
                place = {"input_prefix": prefix[:line], "prompt": prefix[line:], "input_suffix": suffix}
                filled = await ask("/infill", {**place, "n_predict": 16, "stop": stop, "temperature": 0.0})
                fim = await ask("/v1/fim/completions", {"model": "m", **body})
                options = {"num_predict": 16, "stop": stop, "temperature": 0}
                named = {"model": "m:latest", "prompt": prefix, "suffix": suffix, "stream": False}
                ollama = await ask("/api/generate", {**named, "options": options})
                texts = [filled["content"], fim["choices"][0]["message"]["content"], ollama["response"]]
                assert texts == [here] * 3, (mark, stop)
        tokens = (await ask("/tokenize", {"content": SHOP}))["tokens"]
        assert (await ask("/detokenize", {"tokens": tokens}))["content"] == SHOP
        marked = "<|end|>"  # text that looks like a special token stays text
        assert len((await ask("/tokenize", {"content": marked}))["tokens"]) > 1
        body = {"prompt": "def add(a, b):\n    return ", "logprobs": 2, "max_tokens": 4}
        whole = await ask("/v1/completions", {"model": "m", **body})
        logprobs = whole["choices"][0]["logprobs"]
        assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["text_offset"]) > 0
        assert all(len(top) == 2 for top in logprobs["top_logprobs"])


INSTRUCTIONS = ["rename best to lowest", "add type hints", "sing a song", "use `<|end|>` here"]


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
async def test_edits_over_the_socket_are_those_in_process(
    embedded: Asker, instruction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop.py").write_text(SHOP)
    task = locate(parse_target("shop.py:cheapest"), instruction)
    region = task.region
    asked = "shop.py", region.above, region.text, region.below, instruction
    [reply] = embedded.ask([edit_request(embedded.count, embedded.context, *asked)])
    async with served() as running:
        connection = await Connection.open(running.base_url)
        try:
            body = {"model": "m", "input": [task.item()], "store": False}
            response = await (await connection.create(body)).final()
        finally:
            await connection.close()
    said = "".join(part["text"] for item in response.output for part in item["content"])
    assert said == reply.text


async def test_the_command_the_agent_and_http_make_the_same_edit(
    workspace: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workspace)
    shop, instruction = workspace / "shop.py", "rename best to lowest"
    shop.write_text(SHOP)
    async with served("fulgur-60m") as running:
        write_ready(home / "server.json", running.base_url)
        # The command.
        assert await asyncio.to_thread(main, ["edit", "shop.py:cheapest", instruction, "--write"]) == 0
        written = shop.read_text()
        assert written == SHOP.replace("best", "lowest")
        # Plain HTTP.
        shop.write_text(SHOP)
        task = locate(parse_target("shop.py:cheapest"), instruction)
        async with aiohttp.ClientSession() as session:
            body = {"model": "fulgur-60m", "input": [task.item()]}
            async with session.post(f"{running.base_url}/responses", json=body) as answer:
                output = (await answer.json())["output"]
        proposal = propose(task, "".join(part["text"] for item in output for part in item["content"]))
        assert isinstance(proposal, Proposal) and proposal.text == written
        # The agent.
        async with agent_on(running, workspace) as watch:
            assert isinstance(await watch.turn(f"@shop.py:cheapest {instruction}"), TurnDone)
        assert shop.read_text() == written


@pytest.mark.parametrize("stream", [False, True])
async def test_offsets_of_tokens_are_those_in_the_text(stream: bool) -> None:
    """The prompt ends with a space, which is part of the first token and not of the text."""
    body = {"model": "m", "prompt": "def add(a, b):\n    return ", "logprobs": 0, "max_tokens": 12, "temperature": 0}
    async with served() as running, aiohttp.ClientSession() as session:
        async with session.post(f"{running.base_url}/completions", json={**body, "stream": stream}) as answer:
            lines = (await answer.text()).splitlines() if stream else [f"data: {await answer.text()}"]
    choices = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    text = "".join(choice["text"] for choice in choices)
    told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    offsets = [offset for each in told for offset in each["text_offset"]]
    tokens = [token for each in told for token in each["tokens"]]
    assert text.startswith("a + b") and tokens[0] == " a"
    starts = zip(offsets, [*offsets[1:], len(text)], [tokens[0].lstrip(), *tokens[1:]], strict=True)
    assert all(text[start:end] == token for start, end, token in starts)


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_no_answer_has_more_tokens_than_were_asked_for(embedded: Asker, limit: int) -> None:
    """A cursor seldom stands where a token ends: what is spelled again counts for nothing."""
    async with served() as running, aiohttp.ClientSession() as session:
        for mark in CURSORS:
            prompt = SHOP[: SHOP.index(mark) + len(mark)]
            body = {"model": "m", "prompt": prompt, "max_tokens": limit, "logprobs": 0, "temperature": 0}
            async with session.post(f"{running.base_url}/completions", json=body) as answer:
                data = await answer.json()
            assert 0 < data["usage"]["completion_tokens"] <= limit, mark
            [choice] = data["choices"]
            assert len(choice["logprobs"]["tokens"]) == data["usage"]["completion_tokens"], mark
            assert "".join(choice["logprobs"]["tokens"]).endswith(choice["text"]), mark
        for mark in CURSORS:  # the best of several lines: none of them is longer
            at = SHOP.index(mark) + len(mark)
            body = {"prompt": SHOP[:at], "suffix": SHOP[at:], "max_tokens": limit, "stop": ["\n"], "min_probability": 0}
            line = await completed(session, running.base_url, **body)
            begins = healed(SHOP[:at])[1]  # the first token may spell some of it again
            again = embedded.count(begins)
            assert embedded.count(begins + line) <= limit + again, (mark, line)
