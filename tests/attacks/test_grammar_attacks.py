"""Hostile grammars: their sender gets an error, the server and the engine live on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from fulgur.backends.compile import MAX_SOURCE, GrammarBusy, GrammarCompiler
from fulgur.bench.chat_model import write_chat_model
from fulgur.client import Connection
from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError
from fulgur.server import app
from fulgur.server.config import Model, ServerConfig
from fulgur.text.grammar import Grammar, GrammarMatcher, GrammarSpec
from fulgur.text.tokenizer import Tokenizer

SECONDS = float(os.environ.get("FULGUR_FUZZ_SECONDS", "4"))


def patterns(count: int, title: str = "") -> dict[str, Any]:
    """Every string that matches all of these; deciding whether there is one takes exponential time."""
    return {"title": title, "allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(1, count)]}


def chain(rules: int) -> str:
    lines = [f"r{n}: r{n + 1}" for n in range(rules)]
    return "\n".join(["start: r0", *lines, f'r{rules}: "x"', ""])


HOSTILE = {
    "22 patterns": GrammarSpec("json_schema", json.dumps(patterns(22))),
    "39 patterns": GrammarSpec("json_schema", json.dumps(patterns(39))),
    "3,000 rules": GrammarSpec("lark", chain(3000)),
    "30,000 rules": GrammarSpec("lark", chain(30000)),
    "nested repeats": GrammarSpec("regex", "((.?){100}){100}"),
    "many properties": GrammarSpec(
        "json_schema", json.dumps({"type": "object", "properties": {f"k{n}": {"type": "string"} for n in range(3000)}})
    ),
    "long": GrammarSpec("regex", "a" * (MAX_SOURCE + 1)),
    "many brackets": GrammarSpec("regex", "(" * 5000 + "a" + ")" * 5000),
    "not a schema": GrammarSpec("json_schema", '{"type": "banana"}'),
    "half a surrogate": GrammarSpec("regex", "a\ud800"),
}
SMALL = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model") / "random", d_model=64, n_layers=1)


@pytest_asyncio.fixture
async def compiler(folder: Path) -> AsyncIterator[GrammarCompiler]:
    compiler = GrammarCompiler(folder)
    yield compiler
    await compiler.close()


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_grammar_is_an_error(compiler: GrammarCompiler, name: str) -> None:
    with pytest.raises(FulgurError) as caught:
        await compiler.check(HOSTILE[name])
    assert not isinstance(caught.value, GrammarBusy)
    assert len(str(caught.value)) < 500, "the message does not quote the grammar"
    await compiler.check(GrammarSpec("json_schema", json.dumps(SMALL)))


async def test_small_grammars_pass_between_many_hostile_ones(compiler: GrammarCompiler) -> None:
    await compiler.start()
    hostile = [
        asyncio.create_task(compiler.check(GrammarSpec("json_schema", json.dumps(patterns(22, str(n))))))
        for n in range(100)
    ]
    await asyncio.sleep(0)
    for n in range(5):
        while True:
            try:
                await compiler.check(GrammarSpec("regex", f"small{n}"))
                break
            except GrammarBusy:
                await asyncio.sleep(0.1)
    ends = await asyncio.gather(*hostile, return_exceptions=True)
    assert all(isinstance(end, FulgurError) for end in ends)


async def test_a_dead_compiler_is_started_again(compiler: GrammarCompiler) -> None:
    await compiler.check(GrammarSpec("regex", "a"))
    assert compiler._process is not None
    compiler._process.kill()
    while True:
        try:
            await compiler.check(GrammarSpec("regex", "b"))
            break
        except GrammarBusy:
            await asyncio.sleep(0.02)


async def test_others_go_on_while_grammars_are_refused(folder: Path) -> None:
    """The offender gets a 400, another client's stream is what it is without the attack, the engine is the same."""
    config = ServerConfig(models={"r": Model(backend="local", path=str(folder), context=4096)})
    config.server.port, config.server.store = 0, ":memory:"
    running = await app.start(config)
    honest = await Connection.open(running.base_url)
    hostile = await Connection.open(running.base_url)
    body = {"model": "r", "store": False, "max_output_tokens": 300, "input": "hello"}
    try:
        alone = await (await honest.create(body)).final()
        engine = running.server.models.entries["r"].backend.engine.pid  # type: ignore[attr-defined]
        stream = await honest.create(body)
        for spec in HOSTILE.values():
            if spec.kind == "json_schema":
                asked: dict[str, Any] = {
                    "text": {"format": {"type": "json_schema", "name": "x", "schema": json.loads(spec.source)}}
                }
            else:
                grammar = {"type": "grammar", "syntax": spec.kind, "definition": spec.source.replace("\ud800", "(")}
                asked = {"tools": [{"type": "custom", "name": "t", "format": grammar}]}
            with pytest.raises(ApiError) as caught:
                await (await hostile.create({**body, **asked})).final()
            assert caught.value.code == "invalid_grammar"
        together = await stream.final()
        assert together.output[0]["content"][0]["text"] == alone.output[0]["content"][0]["text"]
        assert running.server.models.entries["r"].backend.engine.pid == engine  # type: ignore[attr-defined]
    finally:
        await honest.close()
        await hostile.close()
        await running.close()


def random_schema(choose: random.Random, depth: int = 0) -> Any:
    """A schema as people write them, with keywords where they do not belong and numbers that are too large."""
    number = choose.choice([0, 1, 3, 40, 1000, 10**6, 10**12, -1, 0.5])
    if depth > 4 or choose.random() < 0.3:
        pattern = "".join(
            choose.choice(["a", ".", "(", ")", "*", "{1,99}", "|", "[a-z]", "\\d", "?", "^", "$"]) for _ in range(8)
        )
        leaves: list[Any] = [
            True, False, {}, {"type": "string", "pattern": pattern}, {"type": "string", "maxLength": number},
            {"type": "integer", "minimum": number, "multipleOf": 7}, {"const": None}, {"type": ["null", "number"]},
            {"enum": list(range(choose.randrange(50)))}, {"format": "date-time"}, {"$ref": "#"}, {"type": "banana"},
        ]  # fmt: skip
        return choose.choice(leaves)
    inner = [random_schema(choose, depth + 1) for _ in range(choose.randrange(1, 5))]
    kind = choose.choice(["allOf", "anyOf", "oneOf", "object", "array", "patterns"])
    if kind == "object":
        names = [f"k{place}" for place in range(len(inner))]
        return {"type": "object", "properties": dict(zip(names, inner, strict=True)), "required": names[::2]}
    if kind == "array":
        return {"type": "array", "items": inner[0], "minItems": number, "maxItems": choose.choice([1, 10, 10**9])}
    if kind == "patterns":
        return {"patternProperties": {f"^{'a' * place}": schema for place, schema in enumerate(inner)}}
    return {kind: inner}


@pytest.mark.parametrize("seed", range(2))
async def test_fuzz_schemas_are_used_or_refused(compiler: GrammarCompiler, folder: Path, seed: int) -> None:
    """What passes the trial can be followed; what does not is an error. The process that tries them may die."""
    choose = random.Random(seed)
    tokenizer = Tokenizer.from_folder(folder)
    mask = np.zeros(tokenizer.vocab_size, np.uint8)
    ends = time.monotonic() + SECONDS / 2
    while time.monotonic() < ends:
        spec = GrammarSpec("json_schema", json.dumps(random_schema(choose)))
        try:
            await compiler.check(spec)
        except FulgurError:
            continue
        matcher = GrammarMatcher(Grammar.unchecked(spec), tokenizer)
        with contextlib.suppress(FulgurError):
            for _ in range(40):
                matcher.mask(mask)
                allowed = np.flatnonzero(mask)
                if not len(allowed) or not matcher.accept(int(choose.choice(allowed))):
                    break
