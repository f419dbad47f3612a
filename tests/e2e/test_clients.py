"""Clients that nobody here wrote, each a real run against `fulgur serve`: what it asked for, and what it got."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fulgur.client import once
from fulgur.workspace.folders import embedded_models

CLIENTS = Path(__file__).parent / "clients"
OSLO = {"city": "Oslo", "days": 2}
MAKE = {"command": "echo made > made.txt", "description": "Make it"}
SCRIPT = {
    "reply": [
        {"match": "weather", "after": "message", "steps": [{"call": "weather", "arguments": OSLO}]},
        {"match": "make a file", "after": "message", "steps": [{"call": "Bash", "arguments": MAKE}]},
        {"after": "function_call_output", "steps": [{"text": "It will rain."}]},
    ]
}
LOOP = {"args": OSLO, "text": "It will rain.", "streamed": "You said: hello"}


@pytest.fixture(scope="module")
def root(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`fulgur serve` with a scripted model, a small one that follows schemas, and the shipped one."""
    folder = tmp_path_factory.mktemp("serve")
    (folder / "script.json").write_text(json.dumps(SCRIPT))
    models = {"scripted": ("scripted", folder / "script.json"), "local": ("local", chat_model)}
    if embedded_models():
        models["fulgur-60m"] = ("local", embedded_models()[0])
    tables = [f'[models.{name}]\nbackend = "{kind}"\npath = "{path}"\n' for name, (kind, path) in models.items()]
    (folder / "server.toml").write_text('[server]\nstore = ":memory:"\n' + "".join(tables))
    command = [sys.executable, "-m", "fulgur", "serve", "--file", folder / "server.toml", "--port", "0"]
    environment = {**os.environ, "FULGUR_HOME": str(folder), "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert server.stdout is not None
    try:
        said = ""
        while "listens on" not in said:
            said = server.stdout.readline()
            assert said, "the server ended"
        yield said.split()[-1].removesuffix("/v1")
    finally:
        server.terminate()
        server.wait(20)


def seen(command: list[Any], **options: Any) -> Any:
    """The last line that a client prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=80, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def filled(root: str) -> str:
    """What belongs after `return`, asked as our own client asks."""
    body = {"model": "fulgur-60m", "prompt": "def add(a, b):\n    return ", "suffix": "\n", "max_tokens": 8}
    text = str(once.post(root, "/completions", body)["choices"][0]["text"])
    assert text.strip()
    return text


def test_openai_agents(client_python: Path, root: str) -> None:
    found = seen([client_python, CLIENTS / "agents_sdk.py", root])
    assert found["responses"] == found["streamed"] == found["chat"] == "It will rain."
    assert found["asked"] == [["Oslo", 2]] * 2


def test_langchain(client_python: Path, root: str) -> None:
    found = seen([client_python, CLIENTS / "langchain_clients.py", root])
    assert found == dict.fromkeys(("chat", "responses", "anthropic", "ollama"), LOOP)


def test_litellm(client_python: Path, root: str) -> None:
    found = seen([client_python, CLIENTS / "litellm_client.py", root])
    assert found.pop("error") and list(found.values()) == [["You said: hello", "You said: hello", True]] * 3


def test_pydantic_ai(client_python: Path, root: str) -> None:
    found = seen([client_python, CLIENTS / "pydantic_ai_client.py", root])
    assert found["chat"] == found["responses"] == found["anthropic"] == "It will rain."
    assert len(found["typed"]["name"]) <= 8 and 0 <= found["typed"]["size"] <= 9


def test_llm(client_python: Path, root: str, tmp_path: Path) -> None:
    served = f"- model_id: here\n  model_name: scripted\n  api_base: {root}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(served)
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    command = [client_python.parent / "llm", "-m", "here", "hello"]
    for options in ([], ["--no-stream"], ["-c"]):
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, env=environment)
        assert done.stdout.strip() == "You said: hello", done.stderr


@pytest.mark.skipif(not embedded_models(), reason="this checkout has no embedded model")
def test_ollama(client_python: Path, root: str) -> None:
    found = seen([client_python, CLIENTS / "ollama_client.py", root])
    assert {"scripted", "local", "fulgur-60m"} <= set(found["models"]) and "insert" in found["can"]
    assert {name: found[name] for name in LOOP} == LOOP and found["generated"] == "You said: hello"
    assert found["filled"] == filled(root) and found["error"] == [404, True]


def test_anthropic_sdk(client_python: Path, root: str) -> None:
    found = seen([client_python, CLIENTS / "anthropic_sdk.py", root])
    assert found["stop"] == "tool_use" and found["args"] == LOOP["args"] and found["called"] == [LOOP["args"]]
    assert found["streamed"] == "It will rain." and found["usage"] and found["counted"]
    assert found["error"] == "not_found_error" and "input_json" in found["kinds"]


def test_vercel_ai_sdk(more_node_modules: Path, root: str) -> None:
    found = seen(["node", _beside(more_node_modules, "vercel.mjs"), root])
    assert [found[name] for name in ("responses", "chat", "anthropic")] == [["It will rain.", "You said: hello"]] * 3
    assert found["completion"] and found["asked"] == ["Oslo"] * 3


@pytest.mark.skipif(not embedded_models(), reason="this checkout has no embedded model")
def test_continue(more_node_modules: Path, root: str) -> None:
    found = seen(["node", _beside(more_node_modules, "continue.mjs"), root])
    assert found.pop("filled") == filled(root) and set(found.values()) == {"You said: hello"} and len(found) == 3


def test_claude_code(more_node_modules: Path, root: str, tmp_path: Path) -> None:
    """One prompt and a call of its shell."""
    found = sorted((more_node_modules / "@anthropic-ai").glob("claude-code-*/claude"))
    if not found:
        pytest.skip("there is no Claude Code for this machine")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "ANTHROPIC_BASE_URL": root,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": "scripted",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "scripted",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "home").mkdir()
    command = [found[0], "-p", "make a file", "--output-format", "json", "--allowedTools", "Bash"]
    answer = seen(command, cwd=work, env=environment, stdin=subprocess.DEVNULL)
    assert answer["result"] == "It will rain." and answer["num_turns"] == 2
    assert (work / "made.txt").read_text() == "made\n"


async def test_llama_vim(root: str) -> None:
    """The request that llama.vim sends (ggml-org/llama.vim, `llama#fim`), field by field."""
    if not embedded_models():
        pytest.skip("this checkout has no embedded model")
    asked = {
        "model": "fulgur-60m",
        "input_prefix": "def add(a, b):\n", "input_suffix": "\n", "input_extra": [], "prompt": "    return ",
        "n_predict": 8, "n_indent": 4, "top_k": 40, "top_p": 0.90, "stream": False,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1, "response_fields": ["content", "timings/prompt_n", "timings/predicted_n", "truncated"],
    }  # fmt: skip
    async with aiohttp.ClientSession() as session, session.post(f"{root}/infill", json=asked) as answer:
        found = await answer.json()
    assert answer.status == 200
    assert found["content"] == filled(root) and found["timings/predicted_n"] > 0


def _beside(node_modules: Path, name: str) -> Path:
    """A program finds its packages from where it lies."""
    program = node_modules.parent / name
    program.write_text((CLIENTS / name).read_text())
    return program
