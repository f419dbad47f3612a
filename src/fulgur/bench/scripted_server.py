"""A real server on a free port whose model plays a script, for measurements and tests of the terminal UI."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from fulgur.errors import FulgurError
from fulgur.sandbox import start

MODEL, OTHER_MODEL = "scripted", "scripted-2"  # both play the same script


class ScriptedServer:
    """Writes the server's and the agent's config into `home` (a FULGUR_HOME of its own) and runs `fulgur serve`."""

    def __init__(self, home: Path, script: str, *, config: str = "") -> None:
        self.home = home
        self.port = _free_port()
        self.environment = {"FULGUR_HOME": str(home)}
        self._process: start.Process[bytes] | None = None
        (home / "script.toml").write_text(script, encoding="utf-8")
        model = f'backend = "scripted"\npath = "{home / "script.toml"}"\nprice = {{input = 1, output = 2}}\n'
        models = "".join(f"[models.{name}]\n{model}" for name in (MODEL, OTHER_MODEL))
        (home / "server.toml").write_text(f"[server]\nport = {self.port}\n{models}", encoding="utf-8")
        (home / "config.toml").write_text(
            f'model = "{MODEL}"\nmodel_provider = "scripted"\n{config}\n'
            f'[model_providers.scripted]\nname = "scripted"\nbase_url = "http://127.0.0.1:{self.port}/v1"\n',
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
            command, env = start.python("fulgur", "serve"), start.environment(self.environment)
            self._process = start.popen(command, self.home, env, stdout=file, stderr=file)
        end = time.monotonic() + 20
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
