"""The model's instructions: how to work, the project's rules (AGENTS.md) and where it is."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fulgur.config.settings import Settings
from fulgur.config.skills import Skill
from fulgur.sandbox.policy import Policy
from fulgur.workspace.beneath import read_inside, shown

_BASE = """You are Fulgur, a coding agent in a person's terminal. You work in their project with the tools given.

- Look before you change: read the files concerned, search for uses. Never invent names, attributes or parameters.
- Change as little as the task needs, in the style of the code around it. Prefer apply_patch; one patch may change
  many files.
- For a task of several steps keep a plan with update_plan; the person sees it.
- Independent look-ups go into one step as parallel calls.
- Check your work: run the tests that cover what you changed. If a check reports a problem in your edit, fix it.
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
    """One AGENTS.md (or CLAUDE.md, GEMINI.md) in use."""

    path: Path
    text: str


# A link may lead to another instructions file, not to anything else in the project.
_INSTRUCTIONS = (".md", ".mdc", ".txt", "rules")


def find_rules(settings: Settings) -> list[RuleFile]:
    """The AGENTS.md files of Fulgur's home, then from the project root down to the workspace, up to the size limit."""
    room = settings.integer("project_doc_max_bytes") or 0
    found: list[RuleFile] = []
    for names in _candidates(settings):
        for path in names:
            data = _read(path, settings, room)
            if data is not None:
                room -= len(data)
                if text := data.decode("utf-8", errors="replace").strip():
                    found.append(RuleFile(path, text))
                break
    return found


def rules_left_out(settings: Settings) -> list[str]:
    """One warning for each rules file that is a link and was not followed."""
    return [
        f"{shown(str(path))} was not read: it is a link to {shown(os.readlink(path))}"
        for names in _candidates(settings)
        for path in names
        if path.is_symlink() and _read(path, settings, 1) is None
    ]


def _candidates(settings: Settings) -> Iterator[list[Path]]:
    """The candidate file names, folder by folder; the first that can be read counts."""
    below = settings.workspace.relative_to(settings.project)
    inside = [settings.project.joinpath(*below.parts[:depth]) for depth in range(len(below.parts) + 1)]
    names = (
        "AGENTS.override.md",
        "AGENTS.md",
        "CLAUDE.md",
        "GEMINI.md",
        *settings.strings("project_doc_fallback_filenames"),
    )
    for place in dict.fromkeys([settings.home, *inside]):
        yield [place / name for name in names]


def _read(path: Path, settings: Settings, limit: int) -> bytes | None:
    """Read a rules file. A person's own may be a link to anywhere, the project's only to other instructions in the
    project.

    The text is sent to the model, so a link in a hostile project must not lead to a secret.
    """
    if path.parent != settings.home:
        if path.is_symlink() and not os.path.realpath(path).endswith(_INSTRUCTIONS):
            return None
        return read_inside(settings.project, path, limit)
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except OSError:
        return None


def instructions(settings: Settings, policy: Policy, rules: list[RuleFile], skills: Sequence[Skill] = ()) -> str:
    """The instructions sent with every request; always the same text, so that the server's cache stays warm."""
    extra = "".join(f" and {root}" for root in policy.extra_roots)
    network = (
        "The network can be used." if policy.network or policy.mode == "danger-full-access" else "There is no network."
    )
    shell = os.path.basename(os.environ.get("SHELL", "bash"))
    parts = [
        _BASE,
        f"Workspace: {settings.place or shown(str(policy.workspace))} ({platform.system()}, {shell}). "
        f"{_SANDBOX[policy.mode].format(extra=extra)} {network} {_ASKING[settings.approval_policy]}",
    ]
    if own := settings.text("developer_instructions"):
        parts.append(own)
    for rule in rules:
        path = rule.path
        if settings.place and path.is_relative_to(settings.workspace):
            path = path.relative_to(settings.workspace)
        parts.append(f"Rules from {shown(str(path))}:\n\n{rule.text}")
    if skills:
        listed = "\n".join(f"- {skill.name}: {skill.description}" for skill in skills)
        parts.append(f"Skills. Before you do what one of them is about, read it with the tool `skill`:\n\n{listed}")
    return "\n\n".join(parts)


_ASKING = {
    "untrusted": "Commands that change anything are shown to the person first.",
    "on-failure": "A command that the sandbox refuses may be run again outside it if the person agrees.",
    "on-request": "Set `unsandboxed` and a reason on a shell call to ask the person for more than the sandbox allows.",
    "never": "Nobody can be asked for more than the sandbox allows.",
}
