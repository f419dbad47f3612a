"""Terminal-Bench 2 and other Harbor benchmarks: the agent behind Harbor's interface for installed agents.

    harbor run -d terminal-bench@2.0 --agent fulgur.eval.adapters.harbor:Fulgur \\
        -m openrouter/qwen/qwen3-coder --ak wheel=dist/fulgur-….whl

Needs `pip install harbor` (Python 3.12). Harbor's container is the sandbox, so the agent runs without its own.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from harbor.agents.installed.base import BaseInstalledAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from fulgur.config.known import KNOWN
from fulgur.errors import FulgurError
from fulgur.eval.agent.attempt import Result, Tally
from fulgur.protocol import agent as events

_PLACE = "/opt/fulgur"
_LOG = "fulgur.jsonl"  # all events of the turn, in the folder that Harbor copies back


class Fulgur(BaseInstalledAgent):  # type: ignore[misc]  # Harbor is not installed where types are checked
    """`fulgur exec` in a task's container. `wheel`: the local file to install (`make wheel`); `settings`: values for
    `-c`, separated by commas."""

    def __init__(self, *args: Any, wheel: str | None = None, settings: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._wheel = Path(wheel).expanduser() if wheel else None
        self._settings = [setting for setting in settings.split(",") if setting]

    @staticmethod
    def name() -> str:
        return "fulgur"

    def get_version_command(self) -> str:
        return f"{_PLACE}/bin/fulgur --version"

    async def install(self, environment: BaseEnvironment) -> None:
        """Install a separate environment with its own Python: the task's image may have an older one, or none."""
        if self._wheel is None:  # `fulgur` on PyPI is an unrelated package
            raise FulgurError("no wheel of Fulgur to install", hint="make wheel, then: --ak wheel=dist/FILE.whl")
        await self.ensure_system_dependencies(environment, ("curl", "git", "ripgrep"))
        source = f"/installed-agent/{self._wheel.name}"
        await environment.upload_file(self._wheel, source)
        uv = "export UV_INSTALL_DIR=/usr/local/bin; command -v uv || curl -LsSf https://astral.sh/uv/install.sh | sh"
        make = f"UV_PYTHON_INSTALL_DIR={_PLACE}/python uv venv -q --python 3.12 {_PLACE}"
        fill = f"uv pip install -q --python {_PLACE}/bin/python {shlex.quote(source)}"
        await self.exec_as_root(environment, command=f"({uv}) && {make} && {fill}")

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Run one turn; its events are written to the log as they occur, so a cut-off turn leaves them too."""
        command = [f"{_PLACE}/bin/fulgur", "exec", "--json", "-s", "danger-full-access"]
        provider = None
        if self.model_name:
            provider, slash, model = self.model_name.partition("/")
            command += ["-m", f"{provider}:{model}" if slash and provider in KNOWN else self.model_name]
        for setting in self._settings:
            command += ["-c", setting]
        key = KNOWN[provider].env_key if provider in KNOWN else ""
        value = self._get_env(key) if key else None
        await self.exec_as_agent(
            environment,
            command=f"{shlex.join([*command, '--', self.render_instruction(instruction)])} </dev/null "
            f"2>/logs/agent/fulgur.err | tee /logs/agent/{_LOG}",
            env={key: value} if value else None,
        )

    def populate_context_post_run(self, context: AgentContext) -> None:
        """Fill in tokens and cost from the events."""
        log = self.logs_dir / _LOG
        if not log.is_file():
            return
        result = Result(name="", kind="", about="")
        tally = Tally(result)
        for line in log.read_bytes().splitlines():
            if line.endswith(b"}"):  # the last line may be truncated
                tally.see(events.decode(line))
        context.n_input_tokens, context.n_cache_tokens = result.input_tokens, result.cached_tokens
        context.n_output_tokens, context.cost_usd = result.output_tokens, result.cost
        context.metadata = {
            "models": result.models, "tool_calls": result.calls, "tool_errors": result.tool_errors,
            "session": result.session,
        }  # fmt: skip
