"""Hooks: commands of the person's own, or of a trusted project, that run when something happens in a session.

[hooks.format]
on = "after_edit"
command = "ruff format --quiet \\"$FULGUR_PATH\\""
files = ["*.py"]
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal, cast

from fulgur.config.keys import HOOK_EVENTS
from fulgur.config.settings import Settings
from fulgur.errors import UsageError

HookEvent = Literal["session_start", "before_tool", "after_tool", "after_edit", "turn_end"]
_SECONDS = 30.0
_LONGEST = 600.0


@dataclass(frozen=True)
class Hook:
    """One `[hooks.NAME]`. `tools` and `files` are patterns; without any, every tool and file fits."""

    name: str
    event: HookEvent
    command: str
    tools: tuple[str, ...]
    files: tuple[str, ...]
    seconds: float
    source: str
    """The file that its command stands in."""

    def fits(self, *, tool: str = "", path: str = "") -> bool:
        """Whether the hook applies to this tool and this file."""
        return _any(tool, self.tools) and (_any(path, self.files) or _any(path.rpartition("/")[2], self.files))


def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatch(name, pattern) for pattern in patterns)


def find_hooks(settings: Settings) -> list[Hook]:
    """All hooks in the order of their names; UsageError when one is incomplete. Like the rest of its config, a
    project's hooks count only when the project is trusted."""
    found = []
    for name in settings.names_under("hooks"):
        fields = settings.under("hooks", name)
        if fields.get("enabled") is False:
            continue
        event, command = cast("str | None", fields.get("on")), cast("str | None", fields.get("command"))
        if not event or not command:
            raise UsageError(
                f"hooks.{name}: give both `on` and `command`", hint=f"`on` must be one of {', '.join(HOOK_EVENTS)}."
            )
        tools, files = (tuple(cast("list[str]", fields.get(key, []))) for key in ("tools", "files"))
        if tools and event not in ("before_tool", "after_tool"):
            raise UsageError(f"hooks.{name}: `tools` has no effect on {event}")
        if files and event != "after_edit":
            raise UsageError(f"hooks.{name}: `files` has no effect on {event}")
        seconds = float(cast(float, fields.get("timeout_sec", _SECONDS)))
        if not 0 < seconds <= _LONGEST:
            raise UsageError(
                f"hooks.{name}.timeout_sec is {seconds:g}", hint=f"It must be between 0 and {_LONGEST:g} seconds."
            )
        source = settings.sources[("hooks", name, "command")]
        found.append(Hook(name, cast(HookEvent, event), command, tools, files, seconds, source))
    return found
