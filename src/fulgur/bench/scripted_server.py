"""A real server on a free port whose model plays a script, for measurements and tests of the terminal UI."""

from __future__ import annotations

import contextlib
import random
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from fulgur.errors import FulgurError
from fulgur.sandbox import start

_IDLE_MINUTES = "60"  # in case the process that started it is killed
MODEL, OTHER_MODEL = "scripted", "scripted-2"  # both play the same script


class ScriptedServer:
    """Writes the server's and the agent's config into `home` (a separate FULGUR_HOME) and runs `fulgur serve`.

    All `models` play the same script; with scripts given by name, each model plays its own.
    """

    def __init__(
        self,
        home: Path,
        script: str | Mapping[str, str],
        *,
        config: str = "",
        models: Sequence[str] = (MODEL, OTHER_MODEL),
    ) -> None:
        self.home = home
        self.port = free_port()
        self.environment = {"FULGUR_HOME": str(home)}
        self._process: start.Process[bytes] | None = None
        if isinstance(script, str):
            (home / "script.toml").write_text(script, encoding="utf-8")
            paths = dict.fromkeys(models, home / "script.toml")
        else:
            paths = {name: home / f"{name}.toml" for name in script}
            for name, text in script.items():
                paths[name].write_text(text, encoding="utf-8")
        tables = "".join(
            f'[models.{name}]\nbackend = "scripted"\npath = "{path}"\nprice = {{input = 1, output = 2}}\n'
            for name, path in paths.items()
        )
        (home / "server.toml").write_text(f"[server]\nport = {self.port}\n{tables}", encoding="utf-8")
        (home / "config.toml").write_text(
            f'model = "{next(iter(paths))}"\nmodel_provider = "scripted"\nfeatures.discovery = false\n{config}\n'
            f'[model_providers.scripted]\nname = "scripted"\nbase_url = "http://127.0.0.1:{self.port}/v1"\n'
            "request_max_retries = 1\n",
            encoding="utf-8",
        )

    def __enter__(self) -> ScriptedServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it answers."""
        log = self.home / "server.log"
        with log.open("ab") as file:
            command = start.python("fulgur", "serve", "--idle-exit", _IDLE_MINUTES)
            env = start.environment(self.environment)
            self._process = start.popen(command, self.home, env, stdout=file, stderr=file)
        end = time.monotonic() + 60
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() > end:
                raise FulgurError("the scripted server did not start", hint=log.read_text(errors="replace")[-800:])
            time.sleep(0.02)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=1) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def free_port() -> int:
    """A port that the system gives to nobody else meanwhile: its automatic ports start at 32768."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
