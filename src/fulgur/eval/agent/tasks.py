"""Tasks: the folder that the agent gets, the prompt, and how the result is judged.

The verdict never uses the agent's folder as a whole. It copies the files that count (the source, but no tests, and
nothing that could shadow pytest or a module of Python) into a fresh copy, and runs the original tests there in the
sandbox.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from fulgur.edit.checks.tests import TestRun, put
from fulgur.edit.checks.trial import sandboxed, sandboxed_pytest
from fulgur.errors import FulgurError
from fulgur.workspace import beneath
from fulgur.workspace.folders import home

TEST_SECONDS = 180.0
_PROBE_SECONDS = 60.0
_MOST_BYTES = 4 << 20
_TESTS = re.compile(r"(?:^|/)(?:tests?/|test_[^/]*$|[^/]*_test\.py$|conftest\.py$)")
_TOOLS = {"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "pyte", "wcwidth"}
_TAKEN = _TOOLS | set(sys.stdlib_module_names) | {"sitecustomize", "usercustomize"}
_PASSED = re.compile(r"^PASSED (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Task:
    """One task in its own folder."""

    name: str
    kind: str  # "repair", "feature" or "game"
    about: str  # for the report: what was done to the folder, or what is asked for
    prompt: str
    origin: Path  # the folder before anything was done to it
    tests: tuple[str, ...]  # the arguments to pytest
    counts: str  # the file or folder that the agent may change; "." is all of it
    expected: frozenset[str]  # the tests that must pass
    start: dict[str, str] = field(default_factory=dict)  # files that differ from `origin` when the agent starts
    solution: dict[str, str] = field(default_factory=dict)  # a correct solution: the contents of these files
    hidden: dict[str, str] = field(default_factory=dict)  # tests that only the verdict sees


def lay_out(task: Task, folder: Path) -> None:
    """Create the folder that the agent gets."""
    shutil.copytree(task.origin, folder, symlinks=True)
    put({name: text.encode() for name, text in task.start.items()}, folder)


def verdict(task: Task, worked: Path, place: Path) -> str:
    """The problem with the agent's folder; empty when the task is resolved. `place` is a temporary folder."""
    fresh = place / "verdict"
    lay_out(task, fresh)
    try:
        for name in counted(task, fresh):
            (fresh / name).unlink()
        put(counted(task, worked), fresh)
    except OSError as error:
        return f"a file cannot be read: {error.strerror}"
    except FulgurError as error:
        return error.message
    put({name: text.encode() for name, text in task.hidden.items()}, fresh)
    run = run_tests(fresh, task.tests)
    if run.missing or run.broken:
        return f"the tests do not run: {run.missing or run.broken}"
    lost = sorted(task.expected - passed(run))
    if lost:
        return f"{len(lost)} of {len(task.expected)} tests do not pass, such as {lost[0]}"
    if run.failed:
        return f"{sorted(run.failed)[0]} fails"
    return ""


def counted(task: Task, folder: Path) -> dict[str, bytes]:
    """The files of a folder that count, by name. Links are left out: their targets are not the agent's work."""
    top = folder / task.counts
    found: dict[str, bytes] = {}
    for path in sorted([top, *top.rglob("*")]):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file() or _protected(name):
            continue
        found[name] = beneath.read(folder, path, _MOST_BYTES)
        if sum(map(len, found.values())) >= _MOST_BYTES:
            raise FulgurError(f"the source is larger than {_MOST_BYTES >> 20} MB")
    return found


def _protected(name: str) -> bool:
    parts = name.split("/")
    hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
    return hidden or bool(_TESTS.search(name)) or parts[0].removesuffix(".py") in _TAKEN


def must_run_in_sandbox(python: Path) -> None:
    """Raise FulgurError if sandboxed tests cannot start this Python: the sandbox hides it below /tmp, for example."""
    with tempfile.TemporaryDirectory(prefix="fulgur-eval-") as place:
        folder = Path(place).resolve()
        done = sandboxed(shlex.join([str(python), "-c", "pass"]), folder, home(), _PROBE_SECONDS)
    if done.returncode:
        raise FulgurError(
            f"the sandbox hides {python} from the tests, or keeps it from starting",
            hint="It is created in XDG_CACHE_HOME; set that to a folder that is neither below /tmp nor in ~/.fulgur.",
        )


def run_tests(folder: Path, tests: tuple[str, ...]) -> TestRun:
    """Run the tests of a folder in the sandbox, listing those that pass. In names, the folder becomes `.`."""
    python = str(folder / ".venv/bin/python")
    run = sandboxed_pytest(folder, folder, python, ["-rpfE", *tests], home(), TEST_SECONDS)
    failed = frozenset(name.replace(str(folder), ".") for name in run.failed)
    return replace(run, failed=failed, output=run.output.replace(str(folder), "."))


def passed(run: TestRun) -> frozenset[str]:
    """The tests that pytest reports as passed."""
    return frozenset(_PASSED.findall(run.output.rpartition("short test summary info")[2]))
