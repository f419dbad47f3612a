"""`!command`: a command that the person runs, not the model. It runs outside the sandbox; the model sees it."""

from __future__ import annotations

import time
from collections.abc import Callable

from fulgur.agent.session.history import message
from fulgur.agent.session.state import SessionState
from fulgur.protocol.agent import AgentEvent, ToolFinished, ToolOutput, ToolStarted
from fulgur.protocol.ids import CALL, new_id
from fulgur.tools.shell import Shell, ShellArguments

_SECONDS = 3600.0
_TOLD = 8000  # characters of its output that the model sees


async def run_own(command: str, shell: Shell, state: SessionState, emit: Callable[[AgentEvent], None]) -> None:
    """Run the command and record its output in the session."""
    call, turn, began = new_id(CALL), len(state.turns), time.monotonic()
    emit(ToolStarted(turn=turn, call_id=call, name="shell", title=f"$ {command}", kind="execute"))
    result = await shell.run(
        ShellArguments(command=command, timeout=_SECONDS),
        lambda text: emit(ToolOutput(turn=turn, call_id=call, text=text)),
        unconfined=True,
    )
    seconds = time.monotonic() - began
    emit(ToolFinished(turn=turn, call_id=call, name="shell", ok=result.ok, output=result.output, seconds=seconds))
    said = result.output if len(result.output) <= _TOLD else f"{result.output[:_TOLD]}\n[cut]"
    state.add_items([message("user", f"[The person ran this themselves]\n$ {command}\n{said}")], kind="own")
