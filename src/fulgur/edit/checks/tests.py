"""Run the tests that cover a change, and judge the edit by their results.

Only new failures count against an edit: tests that fail after it run again on a copy of the workspace as it was. A
reason why tests cannot run is reported as a result too.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fulgur.sandbox import start
from fulgur.workspace import beneath
from fulgur.workspace.ignore import walk

MOST_SECONDS = 30.0
_NEAR = 8  # files that run first, so that there is a result when all of them take too long
_MOST_COPIED = 100 << 20  # bytes; a larger workspace is not copied
NONE_COVERS = "tests not run: no test file imports what is changed"
NO_PYTHON = "tests not run: the project has no Python environment of its own"
NO_TEST = "pytest found no test in them"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class TestRun:
    """One run of pytest.

    `failed`: tests that did not pass, or files that could not be collected. `broken`: pytest itself stopped.
    `missing`: why there is no result. `partly`: why there is none for some of the tests."""

    __test__ = False  # not for pytest to collect

    failed: frozenset[str] = frozenset()
    broken: str = ""
    missing: str = ""
    partly: str = ""
    output: str = ""

    @property
    def clean(self) -> bool:
        return not (self.failed or self.broken or self.missing)


@dataclass(frozen=True)
class Judged:
    """The tests' verdict on an edit. `passed`: all tests that cover it ran, and no more of them fail than before."""

    problems: tuple[str, ...] = ()
    note: str = ""
    passed: bool = False


def in_turn(tests: Sequence[str]) -> list[list[str]]:
    """The tests split into runs: the nearest first, then all others."""
    return [part for part in (list(tests[:_NEAR]), list(tests[_NEAR:])) if part]


def together(runs: Sequence[TestRun]) -> TestRun:
    """Merge the runs of `in_turn`."""
    known = [run for run in runs if not run.missing]
    if not known:
        return runs[0]
    partly = next((run.missing for run in runs if run.missing and run.missing != NO_TEST), "")
    failed = frozenset(name for run in known for name in run.failed)
    broken = next((run.broken for run in known if run.broken), "")
    return TestRun(failed, broken, "", partly, "\n".join(run.output for run in known if not run.clean))


def interpreter(workspace: Path) -> str | None:
    """The project's Python: from its environment, else the active one, else the system's; never Fulgur's own."""
    places = [workspace / name for name in (".venv", "venv", "env")]
    places += [Path(os.environ[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)]
    for place in places:
        if place.resolve() != Path(sys.prefix).resolve() and (place / "bin/python").exists():
            return str(place / "bin/python")
    if sys.prefix == sys.base_prefix:
        return sys.executable
    found = start.program("python3", Path(sys.prefix))
    return found if found and Path(found).parent != Path(sys.executable).parent else None


def pytest_command(python: str, folder: Path, tests: Sequence[str]) -> str:
    """The command that runs these tests in a folder and imports from it, even if the package is installed."""
    paths = os.pathsep.join(str(place) for place in (folder, folder / "src") if place.is_dir())
    options = "-q -rfE --tb=short --no-header -p no:cacheprovider --continue-on-collection-errors"
    return (
        f"cd {shlex.quote(str(folder))} && PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={shlex.quote(paths)} "
        f"{shlex.quote(python)} -m pytest {options} {shlex.join(tests)}"
    )


def read_run(exit_code: int | None, output: str, *, timed_out: bool) -> TestRun:
    """The result of a run of `pytest_command`."""
    if timed_out or exit_code is None:
        return TestRun(missing=f"they took over {MOST_SECONDS:g} s", output=output)
    if "No module named pytest" in output:
        return TestRun(missing="there is no pytest in the project's environment", output=output)
    if exit_code in (126, 127):
        return TestRun(missing="the project's Python cannot be started", output=output)
    if exit_code == 5:
        return TestRun(missing=NO_TEST, output=output)
    failed = frozenset(_FAILED.findall(output))
    # 0 passed, 1 failed, 2 interrupted, 3 internal error, 4 wrong use, such as a conftest that cannot be imported
    broken = "" if exit_code in (0, 1) or failed else f"pytest exited with {exit_code}"
    return TestRun(failed, broken, output=output)


def judged(after: TestRun, before: TestRun | None) -> Judged:
    """Compare the runs after and before an edit. `before` None: it was not needed, or is unknown."""
    if after.missing:
        return Judged(note=f"tests not run: {after.missing}")
    rest = f"not all tests that cover it ran: {after.partly}" if after.partly else ""
    if after.clean:
        return Judged(note=rest, passed=not rest)
    if before is None or before.missing:
        why = f" ({before.missing})" if before is not None else ""
        return Judged((_told(after, after.failed),), f"it is unknown whether these tests passed before the edit{why}")
    if before.broken:
        return Judged(note=f"tests not run: pytest could not run before the edit either: {before.broken}")
    fresh = after.failed - before.failed
    known = f"{len(before.failed)} of these tests failed before the edit too" if before.failed else ""
    if after.broken or fresh:
        return Judged((_told(after, fresh),), known)
    return Judged(note="; ".join(filter(None, (known, rest))), passed=not rest)


def _told(run: TestRun, failed: frozenset[str]) -> str:
    named = ", ".join(sorted(failed)[:5]) or run.broken
    return f"{named}:\n{run.output[-4000:].strip()}"


def copy_with(workspace: Path, files: Mapping[str, bytes | None], into: Path) -> bool:
    """Copy all files that are not ignored, replacing the contents of some (None: absent); False: too large to copy."""
    total = 0
    into.mkdir(parents=True, exist_ok=True)
    for entry in walk(workspace):
        with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
            total += entry.stat(follow_symlinks=False).st_size
        if total > _MOST_COPIED:
            return False
        path = Path(entry.path)
        beneath.copy(workspace, path, into, into / path.relative_to(workspace))
    put(files, into)
    return True


def put(files: Mapping[str, bytes | None], into: Path) -> None:
    """Write these contents to files beneath a folder; None deletes the file."""
    into.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        if data is not None:
            beneath.write(into, into / name, data)
            continue
        with contextlib.suppress(FileNotFoundError), beneath.folder(into, (into / name).parent) as parent:
            os.unlink(Path(name).name, dir_fd=parent)
