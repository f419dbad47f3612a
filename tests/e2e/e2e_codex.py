"""The real Codex CLI: its one-shot command and its app-server, against a server of ours."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


class Codex:
    """A Codex with a home of its own, set up as `fulgur connect codex` does it."""

    def __init__(self, node_modules: Path, folder: Path, base_url: str, model: str, *, websocket: bool) -> None:
        self.binary = node_modules / ".bin" / "codex"
        self.home = folder / "home"
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        command = [sys.executable, "-m", "fulgur", "connect", "codex", "--url", base_url, "-m", model]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0 and "codex -p fulgur" in done.stdout, done.stderr
        profile = self.home / "fulgur.config.toml"
        if not websocket:
            profile.write_text(profile.read_text().replace("supports_websockets = true", "supports_websockets = false"))
        # The app-server has no -p: it reads the profile as its main config.
        (self.home / "config.toml").write_text(profile.read_text())

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "CODEX_HOME": str(self.home)}

    def exec(self, prompt: str, *options: str) -> str:
        """What `codex exec` prints; fails when it fails."""
        command = [str(self.binary), "exec", "-p", "fulgur", "--skip-git-repo-check", "-s", "danger-full-access"]
        done = subprocess.run(
            [*command, *options, prompt],
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


class AppServer:
    """JSON-RPC over the standard streams of `codex app-server`."""

    def __init__(self, codex: Codex) -> None:
        self._process = subprocess.Popen(
            [str(codex.binary), "app-server"],
            cwd=codex.work,
            env=codex.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self.seen: list[dict[str, Any]] = []
        self._ids = 0
        threading.Thread(target=self._read, daemon=True).start()
        self.call("initialize", {"clientInfo": {"name": "fulgur-e2e", "title": None, "version": "1"}})
        self._write({"method": "initialized"})

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._ids += 1
        self._write({"id": self._ids, "method": method, "params": params})
        number = self._ids
        answer = self.wait(lambda message: message.get("id") == number and "method" not in message)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def wait(self, wanted: Any, seconds: float = 30.0) -> dict[str, Any]:
        """The next message that fits."""
        deadline = time.monotonic() + seconds
        while True:
            message = self._messages.get(timeout=max(0.01, deadline - time.monotonic()))
            self.seen.append(message)
            if wanted(message):
                return message

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._messages.put(json.loads(line))
