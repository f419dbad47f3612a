"""Roles of subagents: Markdown files with a head, in `.fulgur/agents` of a trusted project and of Fulgur's home.

---
name: reviewer
description: reads a change and says what is wrong with it
model: ollama:qwen3-coder:30b
tools: read, search, list
sandbox: read-only
seconds: 120
tokens: 50000
---
You review changes. …
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from fulgur.config.named import NamedText, named_texts
from fulgur.config.settings import SandboxMode, Settings
from fulgur.errors import FulgurError, UsageError
from fulgur.workspace.beneath import shown

_KEYS = ("name", "description", "model", "tools", "sandbox", "seconds", "tokens")
_MODES: tuple[SandboxMode, ...] = ("read-only", "workspace-write", "danger-full-access")  # from narrow to wide


@dataclass(frozen=True)
class Role:
    """How a subagent works. An empty or zero field inherits from the session that starts it; budgets default to
    none."""

    name: str
    prompt: str = ""
    description: str = ""
    model: str = ""
    tools: tuple[str, ...] = ()
    sandbox: SandboxMode | None = None
    seconds: float = 0.0
    tokens: int = 0


def find_roles(settings: Settings) -> dict[str, Role]:
    """Return every role by name; a project's role replaces one of the home. UsageError for a faulty file."""
    roles = [parse_role(text) for text in named_texts(settings, "agents")]
    return {role.name: role for role in roles}


def parse_role(text: NamedText) -> Role:
    """Parse one role file."""
    where, fields = shown(str(text.path)), text.head
    for key in fields:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Keys: {', '.join(_KEYS)}"
            raise UsageError(f"{where}: unknown key {key!r}", hint=hint)
    mode = fields.get("sandbox") or None
    if mode is not None and mode not in _MODES:
        raise UsageError(f"{where}: there is no sandbox mode {mode!r}", hint=f"One of: {', '.join(_MODES)}")
    try:
        seconds, tokens = float(fields.get("seconds") or 0), int(fields.get("tokens") or 0)
    except ValueError:
        raise UsageError(f"{where}: seconds and tokens must be numbers") from None
    tools = tuple(name.strip() for name in fields.get("tools", "").split(",") if name.strip())
    name = fields.get("name") or text.name
    return Role(name, text.text, fields.get("description", ""), fields.get("model", ""), tools, mode, seconds, tokens)


def role_named(settings: Settings, name: str) -> Role:
    """Return a role by name; the FulgurError lists the known ones."""
    roles = find_roles(settings)
    if name not in roles:
        raise FulgurError(f"there is no role {name!r}", hint=f"Roles: {', '.join(roles) or 'none'}")
    return roles[name]


def narrower(one: SandboxMode, other: SandboxMode | None) -> SandboxMode:
    """Return the stricter of two modes: a role never gets more access than the session that starts it."""
    return min(one, other or one, key=_MODES.index)
