"""The one place that runs git, only ever to read. A repository's configuration may name programs; none of them runs.

Three fences: variables and `-c` switch off every way git has to start a program, no protocol is allowed, so that a
missing object is never fetched, and where a sandbox works git runs inside it, read-only and without a network.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.sandbox import start
from fulgur.sandbox.backend import Launch
from fulgur.sandbox.choose import Unconfined, choose
from fulgur.sandbox.policy import Policy
from fulgur.sandbox.secrets import without_secrets

_SECONDS = 10.0

_OFF = {
    "alias.x": "",
    "core.alternateRefsCommand": "false",
    "core.askPass": "false",
    "core.attributesFile": os.devnull,
    "core.editor": "false",
    "core.fsmonitor": "false",
    "core.gitProxy": "none",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.sshCommand": "false",
    "credential.helper": "",
    "diff.external": "",
    "gc.auto": "0",
    "gpg.program": "false",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "safe.bareRepository": "explicit",
    "submodule.recurse": "false",
}
_VARIABLES = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_SSH_COMMAND": "false",
    "GIT_TERMINAL_PROMPT": "0",
}


def committed(file: Path, home: Path) -> bytes | None:
    """The content of a file as the last commit has it; None when there is none, or no git."""
    real = file.resolve()
    # `cat-file blob` gives the stored bytes: no filter, text conversion or external diff is ever asked.
    return _read(real.parent, home, "cat-file", "blob", f"HEAD:./{real.name}")


def _read(folder: Path, home: Path, *arguments: str) -> bytes | None:
    top = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
    program = start.program("git", folder) if top is None else start.program("git", top)
    if program is None or top is None:
        return None
    switches = [word for name, value in _OFF.items() for word in ("-c", f"{name}={value}")]
    command = [program, "--no-pager", "--literal-pathspecs", *switches, *arguments]
    policy = Policy.make("read-only", top, home)
    try:
        sandbox = choose(policy)
    except FulgurError:
        sandbox = Unconfined()
    launch = Launch([])
    try:
        launch = sandbox.launch(command, policy, folder)
        env = without_secrets(start.environment({**_VARIABLES, **launch.environment}))
        done = start.run(launch.argv, folder, seconds=_SECONDS, env=env, pass_fds=launch.pass_fds)
    except (OSError, start.TimeoutExpired):
        return None
    finally:
        for descriptor in launch.pass_fds:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        sandbox.close()
    return done.stdout if done.returncode == 0 else None
