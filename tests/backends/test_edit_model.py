"""A model that edits and fills in but does not chat, as the embedded ones are: random weights, the real vocabulary."""

from __future__ import annotations

import shutil
from pathlib import Path

import aiohttp
import pytest

from fulgur.client import Connection
from fulgur.model.random import random_model, tiny_config, write_hf_folder
from fulgur.protocol.errors import ApiError
from fulgur.server import app
from fulgur.server.config import Model, ServerConfig
from fulgur.text.tokenizer import Tokenizer
from fulgur.workspace.folders import TOKENIZER


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edit-model")
    shutil.copy(TOKENIZER, folder)
    config = tiny_config("fulgur", vocab_size=Tokenizer.from_folder(folder).vocab_size, max_context=1024, eos_ids=(1,))
    write_hf_folder(folder, config, random_model(config, 0))
    return folder


async def test_it_edits_and_fills_in_and_says_so_when_asked_to_chat(folder: Path) -> None:
    config = ServerConfig(models={"edit": Model(backend="local", path=str(folder))})
    config.server.port, config.server.store = 0, ":memory:"
    running = await app.start(config)
    connection = await Connection.open(running.base_url)
    try:
        (model,) = await connection.models()
        abilities = model["capabilities"]
        assert (abilities["chat"], abilities["fim"], abilities["edit"]) == (False, True, True)
        with pytest.raises(ApiError) as caught:
            await (await connection.create({"model": "edit", "input": "hello"})).final()
        assert caught.value.code == "model_not_capable"
        assert "suffix" in caught.value.message and "fulgur edit" in caught.value.message
        region = "def f(a):\n    return a\n"
        item = {"type": "edit", "path": "a.py", "above": "x = 1\n", "region": region, "instruction": "rename a to b"}
        body = {"model": "edit", "input": [item], "max_output_tokens": 12, "store": False}
        first = await (await connection.create(body)).final()
        assert first.usage is not None and 0 < first.usage.output_tokens <= 12
        again = await (await connection.create(body)).final()
        assert again.usage is not None
        assert again.usage.input_tokens_details.cached_tokens >= again.usage.input_tokens - 1
        fill = {"model": "edit", "prompt": "def f(", "suffix": "):\n    pass\n", "max_tokens": 8}
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{running.base_url}/completions", json=fill) as answer:
                assert answer.status == 200 and (await answer.json())["usage"]["prompt_tokens"] > 5
    finally:
        await connection.close()
        await running.close()
