"""The one place that runs git: to read, and to create, merge (`git_merge.py`) and remove worktrees. A repository's
configuration may name programs; none of them runs.

Three fences. Variables and `-c` options disable every way git has to start a program. No protocol is allowed, so a
missing object is never fetched. If a sandbox works, git reads inside it, read-only and without a network. Worktrees are
written outside the sandbox, with the filters and merge drivers that the configuration names disabled one by one.
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
_CHECKOUT_SECONDS = 300.0

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
    "diff.ignoreSubmodules": "all",
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
    """The content of a file in the last commit; None if there is none, or no git."""
    real = file.resolve()
    # `cat-file blob` returns the stored bytes: no filter, text conversion or external diff is involved.
    return _read(real.parent, home, "cat-file", "blob", f"HEAD:./{real.name}")


def top_folder(folder: Path) -> Path | None:
    """The folder of the working tree that contains `folder`; None if there is none."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)


def add_worktree(top: Path, folder: Path, branch: str) -> None:
    """Create a working tree at the last commit, on a new branch. No hook or filter runs, so files that git-lfs and the
    like keep elsewhere stay pointers."""
    write(top, top, "worktree", "add", "--quiet", "--no-checkout", "-b", branch, "--", str(folder), "HEAD")
    try:
        # Query the new tree: its configuration may differ from that of the first one (`includeIf`).
        off = no_programs(folder, folder)
        # Name the working tree: the configuration may name another one (`core.worktree`).
        write(folder, folder, f"--work-tree={folder}", "reset", "--hard", "--quiet", off=off)
    except FulgurError:
        remove_worktree(top, folder, branch)
        raise


def remove_worktree(top: Path, folder: Path, branch: str) -> None:
    """Remove a working tree and its branch, whatever was changed there."""
    write(top, top, "worktree", "remove", "--force", "--", str(folder))
    write(top, top, "branch", "--quiet", "-D", "--", branch)


def no_programs(top: Path, folder: Path, *where: str) -> dict[str, str]:
    """Settings that turn every configured filter into a no-op and make every merge driver fail. Query the configuration
    exactly as git will be called (`where`): it may hold for one working tree or branch only."""
    listed = write(top, folder, *where, "config", "--null", "--name-only", "--list").split("\0")
    filters, drivers = (
        {name.split(".", 1)[1].rpartition(".")[0] for name in listed if name.startswith(kind)}
        for kind in ("filter.", "merge.")
    )
    if any("=" in name for name in filters | drivers):
        raise FulgurError(f"{folder}: the repository's configuration names a filter or merge driver with a `=`")
    off: dict[str, str] = {}
    for name in filters:
        off |= {f"filter.{name}.{key}": "" for key in ("smudge", "clean", "process")}
        off[f"filter.{name}.required"] = "false"
    return off | {f"merge.{name}.driver": "false" for name in drivers}


def person(top: Path) -> dict[str, str]:
    """Who commits: from the repository, else from the user's own configuration, which is read for this only."""
    found = {}
    for key, otherwise in (("user.name", "Fulgur"), ("user.email", "fulgur@localhost")):
        own = write(top, top, "config", "--get", key, may_fail=True).strip()
        found[key] = own or _personal(key) or otherwise
    return found


def _personal(key: str) -> str:
    """Read a value of the user's own configuration; git only reads it and starts nothing to do so."""
    program = start.program("git")
    command = [str(program), "config", "--global", "--get", key]
    env = start.environment({**_VARIABLES})
    del env["GIT_CONFIG_GLOBAL"]
    try:
        return start.run(command, start.ROOT, seconds=_SECONDS, env=env).stdout.decode(errors="replace").strip()
    except (OSError, start.TimeoutExpired):
        return ""


def write(top: Path, folder: Path, *arguments: str, off: dict[str, str] | None = None, may_fail: bool = False) -> str:
    """Run git in `folder`, outside the sandbox and without any program of the repository; return its output.

    With `may_fail`, an exit code of 1 is an answer too.
    """
    program = start.program("git", top)
    if program is None:
        raise FulgurError("git is not installed", hint="A worktree needs it.")
    switches = [word for name, value in {**_OFF, **(off or {})}.items() for word in ("-c", f"{name}={value}")]
    command = [program, "--no-pager", *switches, *arguments]
    try:
        env = without_secrets(start.environment(_VARIABLES))
        done = start.run(command, folder, seconds=_CHECKOUT_SECONDS, env=env)
    except (OSError, start.TimeoutExpired) as error:
        raise FulgurError(f"git {arguments[0]}: {error}") from None
    if done.returncode and not (may_fail and done.returncode == 1):
        words = [word for word in arguments if not word.startswith(("--git-dir=", "--work-tree="))]
        raise FulgurError(f"git {' '.join(words[:2])}: {done.stderr.decode(errors='replace').strip()[-400:]}")
    return done.stdout.decode(errors="surrogateescape")


def _read(folder: Path, home: Path, *arguments: str) -> bytes | None:
    top = top_folder(folder)
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
