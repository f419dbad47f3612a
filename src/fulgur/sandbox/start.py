"""The one place that starts processes.

The folder Fulgur works in may be hostile. Nothing in it may become our code just because it is the current folder:
Python children start with `-P`, every child gets an explicit working folder and a cleaned environment, and programs are
found only through absolute entries of PATH outside the current folder. `tests/test_imports.py` keeps all other modules
from starting processes.

Imports only the standard library, because the engine and Landlock need it on a bare machine.
"""

from __future__ import annotations

import asyncio
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path("/")  # the working folder of children that need no other
_PACKAGES = Path(__file__).parents[2]

# Variables that make an interpreter or git run or load something they name.
_LOAD_CODE = ("PYTHON", "GIT_", "BASH_ENV", "BASH_FUNC_")
_PATH_LISTS = ("PATH", "LD_LIBRARY_PATH")

DEVNULL, PIPE = subprocess.DEVNULL, subprocess.PIPE
TimeoutExpired = subprocess.TimeoutExpired
Process = subprocess.Popen
AsyncProcess = asyncio.subprocess.Process
CompletedProcess = subprocess.CompletedProcess


def environment(more: Mapping[str, str] | None = None, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of our own programs: nothing that loads code by name, no relative entry in a path list."""
    base = os.environ if base is None else base
    clean = {name: value for name, value in base.items() if not name.startswith(_LOAD_CODE)}
    for name in _PATH_LISTS:
        if name in clean:
            clean[name] = os.pathsep.join(safe_folders(clean[name]))
    if kept := _python_path(base.get("PYTHONPATH", "")):
        clean["PYTHONPATH"] = kept
    return {**clean, "PYTHONSAFEPATH": "1", **(more or {})}


def safe_folders(path_list: str) -> list[str]:
    """Keep only the absolute entries: an empty or relative one means the current folder."""
    return [entry for entry in path_list.split(os.pathsep) if os.path.isabs(entry)]


def _python_path(given: str) -> str:
    """The absolute entries outside the current folder, and the one through which this package was found."""
    kept = [entry for entry in safe_folders(given) if not _inside(entry, [Path.cwd()])]
    own = [str(_PACKAGES)] if str(_PACKAGES) in map(os.path.abspath, filter(None, given.split(os.pathsep))) else []
    return os.pathsep.join(dict.fromkeys(own + kept))


def _inside(entry: str, folders: Sequence[Path]) -> bool:
    """Whether an entry lies in one of the folders; the user's home and its parents do not count as a project."""
    home = Path(os.path.expanduser("~"))
    return any(Path(entry).resolve().is_relative_to(place) for place in folders if not home.is_relative_to(place))


def program(name: str, *avoid: Path) -> str | None:
    """Find a program; None if it is not installed. Never look in the current folder or in `avoid`."""
    beside = str(Path(sys.executable).parent)
    folders = [entry for entry in safe_folders(os.environ.get("PATH", os.defpath)) if entry != beside]
    outside = [entry for entry in folders if not _inside(entry, [Path.cwd(), *avoid])]
    # Our own interpreter's folder is trusted even if the current folder contains it.
    return shutil.which(name, path=os.pathsep.join([*outside, beside]))


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs one of our modules; `-P` keeps the current folder off the module path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def script(file: Path, *arguments: str) -> list[str]:
    """The command that runs one file with only the standard library: it starts fast and needs no path."""
    return [sys.executable, "-I", "-S", str(file), *arguments]


def popen(
    argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None, **more: Any
) -> subprocess.Popen[Any]:
    """Start a program in `folder`; its input is empty unless `more` says otherwise."""
    more.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.Popen(list(argv), cwd=folder, env=environment() if env is None else dict(env), **more)


def run(
    argv: Sequence[str],
    folder: Path,
    *,
    seconds: float,
    env: Mapping[str, str] | None = None,
    data: bytes = b"",
    pass_fds: Sequence[int] = (),
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end; kill it after `seconds` (subprocess.TimeoutExpired)."""
    return subprocess.run(
        list(argv),
        cwd=folder,
        env=environment() if env is None else dict(env),
        input=data,
        capture_output=True,
        timeout=seconds,
        pass_fds=tuple(pass_fds),
        check=False,
    )


async def spawn(
    argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None, **more: Any
) -> asyncio.subprocess.Process:
    """Like `popen`, for the event loop."""
    more.setdefault("stdin", asyncio.subprocess.DEVNULL)
    return await asyncio.create_subprocess_exec(
        *argv, cwd=folder, env=environment() if env is None else dict(env), **more
    )


def in_terminal(argv: Sequence[str], folder: Path, env: Mapping[str, str], size: bytes) -> tuple[int, int]:
    """Start a program in a new pseudo-terminal of this size (a `winsize`); return its process id and our end of the
    terminal."""
    import fcntl
    import termios

    pid, terminal = pty.fork()
    if pid == 0:
        try:
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            os.chdir(folder)
            os.execve(argv[0], list(argv), dict(env))
        finally:
            os._exit(127)
    return pid, terminal
