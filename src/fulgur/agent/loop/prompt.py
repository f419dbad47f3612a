"""What the model is told before anything is said: how to work, the project's rules (AGENTS.md) and where it is."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from fulgur.config.settings import Settings
from fulgur.sandbox.policy import Policy
from fulgur.workspace.beneath import read_inside

_BASE = """You are Fulgur, a coding agent in a person's terminal. You work in their project with the tools given.

- Look before you change: read the files concerned, search for uses. Never invent names, attributes or parameters.
- Change as little as the task needs, in the style of the code around it. Prefer apply_patch; one patch may change
  many files.
- Independent look-ups go into one step as parallel calls.
- Check your work: run the tests that cover what you changed. If a check reports a problem in your edit, mend it.
- The person may redirect you at any moment; then follow the new direction and keep what is still useful.
- When done, say in a few lines what you did and what is left. Name files as path:line. No preamble, no flattery.
- Do not touch .git or .fulgur, do not commit, push or install unless you are asked to."""

_SANDBOX = {
    "read-only": "Commands can read everything and write nothing.",
    "workspace-write": "Commands can write only in the workspace{extra}; `.git` and `.fulgur` are read-only.",
    "danger-full-access": "Commands run without a sandbox: be careful.",
}


@dataclass(frozen=True)
class RuleFile:
    """One AGENTS.md in use."""

    path: Path
    text: str


def find_rules(settings: Settings) -> list[RuleFile]:
    """The AGENTS.md files of Fulgur's home, then from the project's top down to the workspace, up to the size limit."""
    folders = [settings.home]
    below = settings.workspace.relative_to(settings.project)
    folder = settings.project
    folders.append(folder)
    for part in below.parts:
        folder = folder / part
        folders.append(folder)
    room = settings.integer("project_doc_max_bytes") or 0
    found: list[RuleFile] = []
    for place in dict.fromkeys(folders):
        for name in ("AGENTS.override.md", "AGENTS.md", *settings.strings("project_doc_fallback_filenames")):
            data = _read(place, name, settings, room)
            if data is not None:
                room -= len(data)
                if text := data.decode("utf-8", errors="replace").strip():
                    found.append(RuleFile(place / name, text))
                break
    return found


def _read(place: Path, name: str, settings: Settings, limit: int) -> bytes | None:
    """A person's own file may be a link to anywhere; the project's only to another file of the project.

    What it says is sent to the model: a link in a hostile project must not name a secret.
    """
    if place != settings.home:
        return read_inside(settings.project, place / name, limit)
    try:
        with (place / name).open("rb") as file:
            return file.read(limit)
    except OSError:
        return None


def instructions(settings: Settings, policy: Policy, rules: list[RuleFile]) -> str:
    """The instructions sent with every request; the same text each time, so that the server's cache stays warm."""
    extra = "".join(f" and {root}" for root in policy.extra_roots)
    network = (
        "The network can be used." if policy.network or policy.mode == "danger-full-access" else "There is no network."
    )
    parts = [
        _BASE,
        f"Workspace: {policy.workspace} ({platform.system()}, {os.path.basename(os.environ.get('SHELL', 'bash'))}). "
        f"{_SANDBOX[policy.mode].format(extra=extra)} {network} {_ASKING[settings.approval_policy]}",
    ]
    if own := settings.text("developer_instructions"):
        parts.append(own)
    for rule in rules:
        parts.append(f"Rules from {rule.path}:\n\n{rule.text}")
    return "\n\n".join(parts)


_ASKING = {
    "untrusted": "Commands that change anything are shown to the person first.",
    "on-failure": "A command that the sandbox refuses may be run again outside it if the person agrees.",
    "on-request": "Set `unsandboxed` and a reason on a shell call to ask the person for more than the sandbox allows.",
    "never": "Nobody can be asked for more than the sandbox allows.",
}
