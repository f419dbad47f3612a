"""What one key can learn about another through the prefix cache: nothing, unless the operator shares it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fulgur.bench.chat_model import write_chat_model
from fulgur.server import app, auth
from fulgur.server.config import Model, ServerConfig

SECRET = "The password of the week is swordfish, and nobody else may know it. " * 8


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("door", ["responses", "chat/completions", "completions"])
async def test_cached_tokens_tell_nothing_of_another_key(tmp_path: Path, door: str, shared: bool) -> None:
    folder = write_chat_model(tmp_path / "random", d_model=64, n_layers=1)
    keys = {name: auth.new_key(name) for name in ("victim", "spy")}
    # Room to spare: so small a model writes on until it hears of its limit, and may evict what is asked for.
    models = {"r": Model(backend="local", path=str(folder), context=2048, kv_tokens=32_768)}
    config = ServerConfig(models=models, keys=[record for _, record in keys.values()])
    config.server.port, config.server.store, config.server.share_cache = 0, ":memory:", shared
    running = await app.start(config)
    try:
        async with aiohttp.ClientSession() as session:

            async def cached(name: str) -> int:
                body: dict[str, Any] = {"model": "r"}
                if door == "responses":
                    body |= {"input": SECRET, "max_output_tokens": 4}
                elif door == "completions":
                    body |= {"prompt": SECRET, "max_tokens": 4}
                else:
                    body |= {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4}
                headers = {"Authorization": f"Bearer {keys[name][0]}"}
                async with session.post(f"{running.base_url}/{door}", json=body, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    usage = (await answer.json())["usage"]
                details = usage.get("input_tokens_details") or usage["prompt_tokens_details"]
                return int(details["cached_tokens"])

            assert await cached("victim") == 0
            assert (await cached("spy") > 0) == shared
            assert await cached("victim") > 0, "a key's own prefixes are still reused"
    finally:
        await running.close()
