"""The variables that a command sees, according to `shell_environment_policy`: no secrets unless a person asks for
them."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence

from fulgur.sandbox.secrets import without_secrets
from fulgur.sandbox.start import safe_folders

_CORE = ("HOME", "LANG", "LC_*", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")

# Without these, programs would open a pager or an editor, or ask for a password, and wait for a person in vain.
_QUIET = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
}


# Every bash would run the file that one of these names.
_RUN_BY_BASH = ("BASH_ENV", "ENV")


def command_environment(
    inherit: str, exclude: Sequence[str], extra: Mapping[str, str], *, secrets: bool = False
) -> dict[str, str]:
    """Build a command's environment. `inherit` is all, core or none; `exclude` are patterns to leave out; `extra` is
    set last.

    With `secrets`, variables that look like keys or passwords are inherited too. PATH keeps only its absolute entries.
    """
    wanted = {"all": ("*",), "core": _CORE, "none": ("PATH",)}[inherit]
    environment = {
        name: value
        for name, value in os.environ.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)
        and not any(fnmatch.fnmatchcase(name.upper(), pattern.upper()) for pattern in exclude)
        and name not in _RUN_BY_BASH
    }
    if not secrets:
        environment = without_secrets(environment)
    if "PATH" in environment:
        environment["PATH"] = os.pathsep.join(safe_folders(environment["PATH"]))
    return {**environment, **_QUIET, **extra}


def withheld(environment: Mapping[str, str]) -> list[str]:
    """The variables that look like secrets and are not in this environment."""
    return sorted(set(os.environ) - set(without_secrets(os.environ)) - set(environment))
