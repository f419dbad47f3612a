"""What `/model` offers: servers found on this machine, keys in the environment, the embedded models; config reloads."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from agent_world import Watch, agent_on, say, serving
from aiohttp import web
from waiting import PATIENCE

from fulgur.agent.agent import Agent
from fulgur.client.discover import discover, is_loopback, listed, nobody_answers
from fulgur.config.settings import load_settings
from fulgur.protocol.agent import Warned
from fulgur.protocol.session import ModelOffer


@asynccontextmanager
async def listing(routes: dict[str, object]) -> AsyncIterator[str]:
    """A server that answers these paths with JSON."""
    app = web.Application()

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(routes[request.path])

    for path in routes:
        app.router.add_get(path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("routes", "context"),
    [
        ({"/v1/models": {"data": [{"id": "m", "max_model_len": 4096}]}}, 4096),  # vLLM, SGLang
        ({"/v1/models": {"data": [{"id": "m", "meta": {"n_ctx_train": 8192}}]}}, 8192),  # llama.cpp
        (
            {
                "/v1/models": {"data": [{"id": "m"}]},
                "/api/v0/models": {"data": [{"id": "m", "max_context_length": 131072, "loaded_context_length": 4096}]},
            },
            4096,
        ),  # LM Studio
        (
            {
                "/v1/models": {"data": [{"id": "m"}]},
                "/api/ps": {"models": [{"model": "m", "context_length": 16384}]},
            },
            16384,
        ),  # Ollama
        ({"/v1/models": {"data": [{"id": "m"}, {"name": "no id"}, 7]}}, 0),
    ],
)
async def test_every_server_has_its_own_word_for_the_context(routes: dict[str, object], context: int) -> None:
    async with listing(routes) as base_url:
        assert await listed(base_url, None) == {"m": context}


def test_a_known_server_that_does_not_answer_is_named() -> None:
    assert nobody_answers("http://127.0.0.1:11434/v1", OSError("no")).hint == "Is Ollama running?"
    assert "fulgur serve" in str(nobody_answers("http://127.0.0.1:8787/v1", OSError("no")).hint)


async def test_only_this_machine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def note(base_url: str, key: str | None, seconds: float) -> dict[str, int]:
        asked.append(base_url)
        return {"m": 1}

    monkeypatch.setattr("fulgur.client.discover.listed", note)
    here = {"a": "http://127.0.0.1:1/v1", "b": "http://[::1]:1/v1", "c": "http://localhost:1/v1"}
    elsewhere = {"d": "http://10.0.0.1/v1", "e": "https://api.openai.com/v1", "f": "http://127.0.0.1.evil.org/v1"}
    assert set(await discover({**here, **elsewhere})) == {"a", "b", "c"}
    assert set(asked) == set(here.values())
    assert not any(map(is_loopback, elsewhere.values()))


async def test_what_answers_here_is_offered_with_what_is_known(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "secret")
    models = {"data": [{"id": "qwen3:30b", "context_length": 32768}]}
    async with listing({"/v1/models": models}) as base_url, serving([say("word " * 60)], rate=500) as server:
        found = f"model_providers.ollama.base_url={base_url}"
        async with agent_on(server, workspace, found, "model_prices.m.input=1", "model_prices.m.output=2") as watch:
            await watch.turn("speak")
            offers = {offer.name: offer for offer in await watch.agent.offers()}
    assert offers["m"].context == 200_000 and offers["m"].price == {"input": 1, "output": 2}
    assert offers["m"].tokens_per_second > 0
    assert offers["ollama:qwen3:30b"] == ModelOffer(
        name="ollama:qwen3:30b", provider="ollama", context=32768, note="Ollama"
    )
    assert "asked when chosen" in offers["groq:"].note
    assert any(name.startswith("local:fulgur-") for name in offers)  # the embedded ones stay


async def test_the_provider_is_named_with_the_model(workspace: Path) -> None:
    other = [say("From the other one.")]
    async with serving([say("From m.")]) as server, serving(other, more={"n": other}) as second:
        async with agent_on(server, workspace, f"model_providers.other.base_url={second.base_url}") as watch:
            assert (await watch.turn("hi")).text == "From m."
            await watch.agent.set_model("other:n")
            assert (await watch.turn("hi")).text == "From the other one."
            assert watch.agent.status().answering_model == "n"
            await watch.agent.set_model("other:")
            assert watch.agent.status().model == "m"
    settings = load_settings(workspace)
    assert settings.split_model("qwen3:30b") == (None, "qwen3:30b")
    assert settings.split_model("ollama:qwen3:30b") == ("ollama", "qwen3:30b")
    chosen = load_settings(workspace, overrides=["model_provider=groq"]).provider
    assert (chosen.base_url, chosen.env_key, chosen.wire_api) == (
        "https://api.groq.com/openai/v1",
        "GROQ_API_KEY",
        "chat",
    )


async def test_a_changed_config_counts_from_the_next_turn(home: Path, workspace: Path) -> None:
    async with serving([say("From m.")], more={"n": [say("From n.")]}) as server:
        table = f'[model_providers.test]\nbase_url = "{server.base_url}"\n'
        config = home / "config.toml"
        config.write_text(f'model_provider = "test"\nmodel = "m"\n{table}')
        agent = await Agent.open(load_settings(workspace))
        watch = Watch(agent)
        assert (await watch.turn("hi")).text == "From m."
        config.write_text(f'model_provider = "test"\nmodel = "n"\n{table}')
        assert (await watch.turn("hi")).text == "From n."
        config.write_text("modle = 1\n")
        assert (await watch.turn("hi")).text == "From n."
        assert (await watch.turn("hi")).text == "From n."
        await agent.close()
        await asyncio.wait_for(watch._task, PATIENCE)
    said = [event.message for event in watch.of(Warned) if "config" in event.message]
    assert said == [
        "the config changed and was reloaded: model",
        f"the changed config is invalid and not used: unknown key modle ({config})",
    ]


async def test_a_model_added_to_the_servers_config_can_be_chosen(home: Path, workspace: Path) -> None:
    table = '[models.{}]\nbackend = "scripted"\n'
    own = '[server]\nport = 0\nstore = ":memory:"\n' + table.format("m")
    (home / "server.toml").write_text(own)
    agent = await Agent.open(load_settings(workspace, overrides=["model=m", "features.discovery=false"]))
    try:
        (home / "server.toml").write_text(own + table.format("n"))
        await agent.set_model("n")
        assert agent.status().model == "n"
        assert (await Watch(agent).turn("hi")).text == "You said: hi"
    finally:
        await agent.close()
        os.kill(json.loads((home / "server.json").read_text())["pid"], signal.SIGTERM)
