"""ACP clients that nobody here wrote drive `fulgur acp`: acpx (github.com/openclaw/acpx), and the SDK of editors."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = {
    "rate": 100,
    "reply": [
        {"match": "hello", "steps": [{"text": "Hello from the script."}]},
        {"match": "count", "steps": [{"text": "one two three four " * 2000}]},
        {
            "match": "change",
            "times": 1,
            "steps": [{"call": "edit", "arguments": {"path": "notes.txt", "old": "line", "new": "LINE"}}],
        },
        {"match": "change", "steps": [{"text": "Changed."}]},
        {
            "match": "outside",
            "after": "message",
            "steps": [
                {"call": "shell", "arguments": {"command": "echo ran >> ran.txt", "unsandboxed": True, "reason": "x"}}
            ],
        },
        {"match": "outside", "steps": [{"text": "Done."}]},
    ],
}


class Client:
    """acpx in one folder, with a home of its own."""

    def __init__(self, program: list[Path], place: Path) -> None:
        self.home, self.work = place / "home", place / "work"
        self.home.mkdir()
        self.work.mkdir()
        (self.work / "notes.txt").write_text("line\n")
        (self.home / "script.json").write_text(json.dumps(SCRIPT))
        model = f'[models.scripted]\nbackend = "scripted"\npath = "{self.home}/script.json"\n'
        (self.home / "server.toml").write_text(f"[server]\nport = 0\n{model}")
        (self.home / "config.toml").write_text('model = "scripted"\n')
        agent = [sys.executable, "-m", "fulgur", "acp"]
        self._command = [*map(str, program), "--agent", " ".join(agent), "--cwd", str(self.work), "--ttl", "60"]
        node, sdk = program[0], program[1].parents[2] / "@agentclientprotocol" / "sdk" / "dist" / "acp.js"
        script = Path(__file__).parent / "clients" / "acp.mjs"
        self._sdk = [*map(str, (node, script, sdk, self.work)), *agent]
        self._env = {**os.environ, "HOME": str(self.home), "FULGUR_HOME": str(self.home)}

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([*self._command, *words], stdout=pipe, stderr=pipe, text=True, env=self._env)

    def run(self, *words: str, code: int = 0) -> str:
        with self.start(*words) as process:
            out, err = process.communicate(timeout=80)
        assert process.returncode == code, (words, out[-1500:], err[-1500:])
        return out

    def every_method(self) -> str:
        """What the SDK of editors says after it has called everything."""
        done = subprocess.run(self._sdk, capture_output=True, text=True, env=self._env, timeout=80)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def messages(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        """Every message of the protocol, both ways."""
        told = self.run("--format", "json", *words, code=code)
        return [json.loads(line) for line in told.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def client(acpx: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    one = Client(acpx, tmp_path_factory.mktemp("acpx"))
    yield one
    for name in ("host.json", "server.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            os.kill(json.loads((one.home / name).read_bytes())["pid"], signal.SIGTERM)


def updates(messages: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    told = [message["params"]["update"] for message in messages if message.get("method") == "session/update"]
    return [update for update in told if update["sessionUpdate"] == kind]


def said(messages: list[dict[str, Any]]) -> str:
    return "".join(update["content"]["text"] for update in updates(messages, "agent_message_chunk"))


def test_a_session_its_options_and_an_edit(client: Client) -> None:
    once = client.messages("exec", "hello there")
    assert said(once) == "Hello from the script." and once[-1]["result"]["stopReason"] == "end_turn"
    session = client.run("sessions", "new").split()[-1]
    client.run("set-mode", "auto")
    client.run("set", "model", "scripted")
    # An edit goes through the client's own files.
    changed = client.messages("--approve-all", "prompt", "change it")
    assert "fs/write_text_file" in [message.get("method") for message in changed]
    assert (client.work / "notes.txt").read_text() == "LINE\n" and said(changed) == "Changed."
    [diff] = [part for update in updates(changed, "tool_call_update") for part in update.get("content") or ()][-1:]
    assert diff["type"] == "diff" and (diff["oldText"], diff["newText"]) == ("line\n", "LINE\n")
    assert session in client.run("sessions", "list")


def test_questions_are_answered_and_answers_cancelled(client: Client) -> None:
    client.run("sessions", "new")
    assert said(client.messages("--deny-all", "prompt", "outside", code=5)) == "Done."  # 5: something was denied
    assert not (client.work / "ran.txt").exists()
    allowed = client.messages("--approve-all", "prompt", "outside")
    assert "session/request_permission" in [message.get("method") for message in allowed]
    assert (client.work / "ran.txt").read_text() == "ran\n"
    with client.start("--format", "json", "prompt", "count") as counting:
        assert counting.stdout is not None
        for line in counting.stdout:
            if "agent_message_chunk" in line:
                break
        client.run("cancel")
        rest, _ = counting.communicate(timeout=60)
    assert '"stopReason":"cancelled"' in rest
    client.run("sessions", "close")


def test_every_method(client: Client) -> None:
    assert client.every_method() == "all methods\n"
