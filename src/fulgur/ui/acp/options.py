"""What an editor's pickers offer (modes and models), and the slash commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fulgur.protocol.session import Status


@dataclass(frozen=True)
class Mode:
    """A combination of sandbox and approvals, and the config keys it sets."""

    id: str
    name: str
    description: str
    sandbox: str
    approvals: str

    @property
    def overrides(self) -> tuple[str, str]:
        return f"sandbox_mode={self.sandbox}", f"approval_policy={self.approvals}"


MODES = (
    Mode("ask", "Ask", "Ask before every command and every change", "workspace-write", "untrusted"),
    Mode("auto", "Auto", "Work in the workspace, ask before leaving the sandbox", "workspace-write", "on-request"),
    Mode("read", "Read only", "Look, and change nothing", "read-only", "on-request"),
    Mode("full", "Full access", "Commands run without a sandbox", "danger-full-access", "on-request"),
)

COMMANDS: list[dict[str, Any]] = [
    {"name": "steer", "description": "redirect the running answer at the next token", "input": {"hint": "text"}},
    {"name": "queue", "description": "a prompt for after this turn", "input": {"hint": "text"}},
    {"name": "undo", "description": "restore the files to before the last turn that changed any"},
    {"name": "compact", "description": "replace old messages with a summary now"},
    {"name": "diff", "description": "every change of this session"},
    {"name": "status", "description": "which model answers, context, sandbox"},
]


def mode_of(status: Status) -> str:
    """The mode that matches the session's settings; the nearest one if none matches exactly."""
    sandbox = status.sandbox.split()[0].rstrip(",")
    for mode in MODES:
        if (mode.sandbox, mode.approvals) == (sandbox, status.approval_policy):
            return mode.id
    return next((mode.id for mode in MODES if mode.sandbox == sandbox and mode.id != "ask"), "auto")


def mode_state(status: Status) -> dict[str, Any]:
    """The modes in the protocol's older form."""
    modes = [{"id": mode.id, "name": mode.name, "description": mode.description} for mode in MODES]
    return {"currentModeId": mode_of(status), "availableModes": modes}


def config_options(status: Status, models: list[str]) -> list[dict[str, Any]]:
    """Mode and model as options."""
    names = models if status.model in models else [status.model, *models]
    modes = [{"value": mode.id, "name": mode.name, "description": mode.description} for mode in MODES]
    return [
        {
            "type": "select",
            "id": "mode",
            "name": "Mode",
            "category": "mode",
            "currentValue": mode_of(status),
            "options": modes,
        },
        {
            "type": "select",
            "id": "model",
            "name": "Model",
            "category": "model",
            "currentValue": status.model,
            "options": [{"value": name, "name": name} for name in names],
        },
    ]
