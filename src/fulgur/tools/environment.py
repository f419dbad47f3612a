"""The variables a command sees, as `shell_environment_policy` says."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence

_CORE = ("HOME", "LANG", "LC_*", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")

# Programs that would open a pager or an editor, or ask for a password, wait for a person who is not there.
_QUIET = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
}


def command_environment(inherit: str, exclude: Sequence[str], extra: dict[str, str]) -> dict[str, str]:
    """`inherit` is all, core or none; `exclude` are patterns left out; `extra` is set last."""
    wanted = {"all": ("*",), "core": _CORE, "none": ("PATH",)}[inherit]
    environment = {
        name: value
        for name, value in os.environ.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)
        and not any(fnmatch.fnmatchcase(name.upper(), pattern.upper()) for pattern in exclude)
    }
    return {**environment, **_QUIET, **extra}
