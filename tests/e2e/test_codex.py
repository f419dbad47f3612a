from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_codex import AppServer, Codex
from live_server import LiveServer

PATCH = "*** Begin Patch\n*** Add File: greeting.txt\n+hello from the patch\n*** End Patch\n"

REPLIES = (
    {
        "match": "shell",
        "after": "message",
        "steps": [
            {"text": "Running it."},
            {"call": "exec_command", "arguments": {"cmd": "echo made by shell > made.txt"}},
        ],
    },
    {"match": "patch", "after": "message", "steps": [{"custom": "apply_patch", "input": PATCH}]},
    {"after": "function_call_output", "steps": [{"text": "The command ran."}]},
    {"after": "custom_tool_call_output", "steps": [{"text": "The patch is in."}]},
    {"match": "count forever", "steps": [{"text": "Counting: "}, {"tokens": 4000}]},
    {"match": "say stop", "steps": [{"text": "Stopped as you wished."}]},
)


@pytest.fixture(scope="module")
def live(chat_model: Path) -> Iterator[LiveServer]:
    with LiveServer(*REPLIES, rate=300, folder=chat_model) as server:
        yield server


@pytest.fixture(params=["websocket", "http"])
def codex(request: pytest.FixtureRequest, node_modules: Path, tmp_path: Path, live: LiveServer) -> Codex:
    return Codex(node_modules, tmp_path, live.base_url, "scripted", websocket=request.param == "websocket")


def frames(live: LiveServer, kind: str) -> float:
    return live.server.metrics.get("fulgur_websocket_frames_total", type=kind)


def test_text_turn(codex: Codex) -> None:
    assert "You said: good morning" in codex.exec("good morning")


def test_shell_turn(codex: Codex) -> None:
    assert "The command ran." in codex.exec("use the shell")
    assert (codex.work / "made.txt").read_text() == "made by shell\n"


def test_apply_patch_turn(codex: Codex) -> None:
    assert "The patch is in." in codex.exec("make a patch")
    assert (codex.work / "greeting.txt").read_text() == "hello from the patch\n"


@pytest.mark.parametrize("websocket", [True, False])
def test_text_turn_of_the_local_engine(node_modules: Path, tmp_path: Path, live: LiveServer, websocket: bool) -> None:
    """The whole way: Codex's own prompt through the template, the engine and back."""
    before = live.server.metrics.get("fulgur_responses_total", model="local", status="completed")
    codex = Codex(node_modules, tmp_path, live.base_url, "local", websocket=websocket)
    shape = tmp_path / "shape.json"
    shape.write_text(
        '{"type":"object","properties":{"ok":{"enum":["yes"]}},"required":["ok"],"additionalProperties":false}'
    )
    answer = tmp_path / "answer.json"
    codex.exec("answer", "--output-schema", str(shape), "-o", str(answer))
    assert json.loads(answer.read_text()) == {"ok": "yes"}
    assert live.server.metrics.get("fulgur_responses_total", model="local", status="completed") > before


def test_turns_use_the_socket_they_should(node_modules: Path, tmp_path: Path, live: LiveServer) -> None:
    before = frames(live, "response.create")
    Codex(node_modules, tmp_path / "http", live.base_url, "scripted", websocket=False).exec("hello")
    assert frames(live, "response.create") == before
    Codex(node_modules, tmp_path / "ws", live.base_url, "scripted", websocket=True).exec("hello")
    assert frames(live, "response.create") == before + 2, "a warm-up and a turn"


@pytest.mark.parametrize("websocket", [True, False])
def test_steered_turn(node_modules: Path, tmp_path: Path, live: LiveServer, websocket: bool) -> None:
    """App-server, lite mode: a steer in mid-stream ends the answer and the next one follows it.

    On the socket Codex interrupts the response; over HTTP it drops the stream and posts all again.
    """
    before = frames(live, "response.interrupt")
    app = AppServer(Codex(node_modules, tmp_path, live.base_url, "scripted", websocket=websocket))
    try:
        thread = app.call(
            "thread/start", {"cwd": str(tmp_path), "sandbox": "danger-full-access", "approvalPolicy": "never"}
        )
        thread_id = thread["thread"]["id"]
        text = [{"type": "text", "text": "count forever", "text_elements": []}]
        turn = app.call("turn/start", {"threadId": thread_id, "input": text})
        app.wait(lambda message: message.get("method") == "item/agentMessage/delta")
        steer = [{"type": "text", "text": "say stop", "text_elements": []}]
        app.call("turn/steer", {"threadId": thread_id, "expectedTurnId": turn["turn"]["id"], "input": steer})
        done = app.wait(lambda message: message.get("method") == "turn/completed")
        assert done["params"]["turn"]["status"] == "completed"
        said = [
            message["params"]["item"].get("text", "")
            for message in app.seen
            if message.get("method") == "item/completed"
        ]
        assert "Stopped as you wished." in said
        assert frames(live, "response.interrupt") == before + websocket
        assert live.backend.running == 0
    finally:
        app.close()
