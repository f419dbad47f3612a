"""The agent behind Harbor's interface. Runs where Harbor is installed (Python 3.12); its container is a folder here."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("harbor")

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.agent.context import AgentContext

from fulgur.bench.scripted_server import ScriptedServer
from fulgur.errors import FulgurError
from fulgur.eval.adapters.harbor import Fulgur
from fulgur.eval.agent import scripted


class Folder(BaseEnvironment):  # type: ignore[misc]
    """Commands run here, in a folder; Fulgur is the one under test instead of an installed one."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder, self.variables = folder, variables
        self.ran: list[tuple[str, dict[str, str] | None]] = []
        self.default_user = None

    async def exec(self, command: str, cwd: str | None = None, env: dict[str, str] | None = None,
                   timeout_sec: int | None = None, user: str | int | None = None) -> ExecResult:  # fmt: skip
        self.ran.append((command, env))
        if "uv pip install" in command or "command -v" in command:
            return ExecResult(return_code=0)
        here = command.replace("/opt/fulgur/bin/fulgur", f"{sys.executable} -m fulgur").replace(
            "/logs/agent", "../logs"
        )
        done = subprocess.run(["bash", "-c", here], cwd=self.folder, env=self.variables, capture_output=True, text=True)
        return ExecResult(stdout=done.stdout, stderr=done.stderr, return_code=done.returncode)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        self.ran.append((f"upload {source_path} {target_path}", None))

    @classmethod
    def type(cls) -> Any:
        return "folder"

    async def start(self, *args: Any, **more: Any) -> None: ...
    async def stop(self, *args: Any, **more: Any) -> None: ...
    async def upload_dir(self, *args: Any) -> None: ...
    async def download_file(self, *args: Any) -> None: ...
    async def download_dir(self, *args: Any) -> None: ...
    def _validate_definition(self) -> None: ...


async def test_harbor_installs_runs_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("home", "work", "logs"):
        (tmp_path / name).mkdir()
    call = {"call": "shell", "arguments": {"command": "echo hello > hello.txt"}}
    with ScriptedServer(tmp_path / "home", {"m": scripted.script([[call], [{"text": "Done."}]])}) as server:
        folder = Folder(tmp_path / "work", {**os.environ, **server.environment})
        agent = Fulgur(tmp_path / "logs", model_name="m", wheel=str(tmp_path / "fulgur-1.whl"))
        await agent.setup(folder)
        await agent.run("Write 'hello' to hello.txt; it's short.", folder, AgentContext())
    assert (tmp_path / "work/hello.txt").read_text() == "hello\n"
    context = AgentContext()
    agent.populate_context_post_run(context)
    assert context.n_output_tokens and context.n_input_tokens and context.cost_usd
    assert context.metadata and context.metadata["models"] == ["m"] and context.metadata["tool_calls"] == 1
    commands = [command for command, _ in folder.ran]
    assert any("/installed-agent/fulgur-1.whl" in command for command in commands)

    monkeypatch.setenv("GROQ_API_KEY", "secret")
    other = Fulgur(tmp_path / "logs", model_name="groq/moonshotai/kimi", settings="features.guards=false")
    with pytest.raises(FulgurError, match="no wheel"):  # `fulgur` on PyPI is another package
        await other.install(folder)
    folder.variables["FULGUR_HOME"] = os.devnull
    with pytest.raises(RuntimeError):  # an agent that does not start is not a task that was not solved
        await other.run("hello", folder, AgentContext())
    command, env = folder.ran[-1]
    assert "-m groq:moonshotai/kimi -c features.guards=false" in command and env == {"GROQ_API_KEY": "secret"}
    assert "secret" not in command
