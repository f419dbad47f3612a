"""An API that only speaks Chat Completions works by config alone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import say, serving

from fulgur.agent.agent import Agent
from fulgur.config.settings import load_settings
from fulgur.errors import FulgurError


@pytest.fixture(autouse=True)
def fronts(home: Path) -> Iterator[Path]:
    """The servers that a test starts end with it."""
    yield home / "fronts"
    for note in (home / "fronts").glob("*/server.json"):
        os.kill(json.loads(note.read_text())["pid"], signal.SIGTERM)


def configured(home: Path, base_url: str, more: str = "") -> None:
    (home / "config.toml").write_text(
        f'model_provider = "../there"\n{more}\n[features]\nguards = false\n'
        f'[model_providers."../there"]\nbase_url = "{base_url}"\nwire_api = "chat"\n'
    )


async def answer(workspace: Path) -> str:
    agent = await Agent.open(load_settings(workspace))
    try:
        agent.submit("hello")
        await agent.wait()
        last = agent.state.history.visible()[-1]
        return str(last["content"][0]["text"])
    finally:
        await agent.close()


async def test_a_turn_through_a_chat_only_provider(home: Path, workspace: Path, fronts: Path) -> None:
    async with serving([say("Hello there.")]) as server:
        configured(home, server.base_url)
        assert await answer(workspace) == "Hello there."
        assert await answer(workspace) == "Hello there."
        assert len(list(fronts.iterdir())) == 1  # the second turn found the server of the first
        configured(home, server.base_url, "model_context_window = 5000")
        assert await answer(workspace) == "Hello there."
        assert len(list(fronts.iterdir())) == 2  # other settings, another server


async def test_no_api_is_a_clear_error(home: Path, workspace: Path) -> None:
    configured(home, "http://127.0.0.1:9/v1")
    with pytest.raises(FulgurError, match="No server answers at http"):
        await Agent.open(load_settings(workspace))
