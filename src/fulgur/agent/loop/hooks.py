"""Runs the hooks of the config, each in the sandbox in a separate shell.

A hook reads the event as JSON on standard input; the most useful fields are also in variables. Exit code 0 means no
objection. What any other exit code means depends on the event: before a tool, the call is not made; after it, the model
reads the output; at the end of a turn, the model gets one more try.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any

from fulgur.config.hooks import Hook, HookEvent, find_hooks
from fulgur.config.settings import Settings
from fulgur.errors import FulgurError
from fulgur.protocol.agent import AgentEvent, Warned
from fulgur.tools.shell import Shell, ShellArguments

_TOLD = 4000  # characters kept of a hook's output
_GIVEN = 200_000  # characters of input above which a tool's output is cut


class Hooks:
    """The hooks of one turn. Without configured hooks nothing is started."""

    def __init__(
        self, settings: Settings, shell: Shell, session_id: str, emit: Callable[[AgentEvent], None], turn: int
    ) -> None:
        self._shell = shell
        self._emit = emit
        self._about = {"session_id": session_id, "workspace": str(settings.workspace), "turn": turn}
        self._problem: FulgurError | None = None
        try:
            self._hooks = find_hooks(settings)
        except FulgurError as error:
            self._hooks, self._problem = [], error

    async def session_start(self, *, resumed: bool) -> str:
        """Run before the first turn since the session was opened; return what the model should know."""
        if self._problem is not None:
            raise self._problem  # run no turn without hooks that the config asks for
        told = []
        for hook in self._of("session_start"):
            ok, output = await self._run(hook, {"resumed": resumed})
            if not ok:
                self._warn(hook, output)
            elif output:
                told.append(f"[Hook {hook.name} at the start of the session]\n{output}")
        return "\n\n".join(told)

    async def before_tool(self, tool: str, arguments: str) -> str:
        """Why the call may not be made; empty if it may."""
        for hook in self._of("before_tool"):
            if hook.fits(tool=tool):
                ok, output = await self._run(hook, {"tool": tool, "arguments": arguments})
                if not ok:
                    return f"The hook {hook.name} does not allow this call: {output or 'it gave no reason'}"
        return ""

    async def after_tool(self, tool: str, arguments: str, ok: bool, output: str) -> str:
        """What the model should read in addition to the call's output."""
        given = {"tool": tool, "arguments": arguments, "ok": ok, "output": output}
        return await self._after("after_tool", given, tool=tool)

    async def after_edit(self, path: str) -> str:
        """Like `after_tool`, for one changed file."""
        return await self._after("after_edit", {"path": path}, path=path)

    @property
    def after_edits(self) -> bool:
        """Whether any hook listens for edits."""
        return any(self._of("after_edit"))

    async def turn_end(self, text: str) -> str:
        """What the model should still do; empty if the turn may end."""
        return await self._after("turn_end", {"text": text})

    async def _after(self, event: HookEvent, given: dict[str, Any], *, tool: str = "", path: str = "") -> str:
        told = []
        for hook in self._of(event):
            if hook.fits(tool=tool, path=path):
                ok, output = await self._run(hook, given)
                if not ok:
                    self._warn(hook, output)
                    told.append(f"[Hook {hook.name}{f', {path}' if path else ''}] {output or 'failed'}")
        return "\n".join(told)

    def _of(self, event: HookEvent) -> list[Hook]:
        return [hook for hook in self._hooks if hook.event == event]

    def _warn(self, hook: Hook, output: str) -> None:
        self._emit(Warned(message=f"hook {hook.name} ({hook.event}): {output or 'failed without output'}"))

    async def _run(self, hook: Hook, given: dict[str, Any]) -> tuple[bool, str]:
        """Run a hook; return whether it ended with 0, and its output."""
        data = json.dumps({"hook": hook.name, "event": hook.event, **self._about, **given})
        if len(data) > _GIVEN and "output" in given:
            return await self._run(hook, {**given, "output": given["output"][: _GIVEN // 4], "cut": True})
        variables = {
            "FULGUR_EVENT": hook.event,
            "FULGUR_TOOL": given.get("tool", ""),
            "FULGUR_PATH": given.get("path", ""),
        }
        exports = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in variables.items())
        command = f"export {exports}\nprintf %s {shlex.quote(data)} 2>/dev/null | eval {shlex.quote(hook.command)}"
        try:
            result = await self._shell.run_separately(ShellArguments(command=command, timeout=hook.seconds))
        except FulgurError as error:
            return False, error.message
        output = result.output.strip()[:_TOLD]
        if result.timed_out:
            return False, f"{output}\n[timed out after {hook.seconds:g} s]".strip()
        if result.exit_code and not output:
            output = f"exit code {result.exit_code}"
        return result.exit_code == 0, output
