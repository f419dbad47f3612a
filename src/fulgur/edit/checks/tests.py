"""The quick tests that touch a changed file: which they are, how they are run, and what their end says of the edit.

Only what was not broken before counts against an edit: tests that fail after it are run once more on a copy of the
workspace as it was. Whatever keeps them from running is a result too, and said.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fulgur.sandbox import start
from fulgur.workspace.ignore import walk

MOST_SECONDS = 30.0
_MOST_FILES = 8
_MOST_COPIED = 100 << 20  # bytes of a workspace that is copied to see what failed before
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class TestRun:
    """One run of pytest. `failed` are the tests (or files that could not be collected) that did not pass, `broken`
    says that pytest itself could not go on, `missing` why nothing can be said."""

    __test__ = False  # not for pytest to collect

    failed: frozenset[str] = frozenset()
    broken: str = ""
    missing: str = ""
    output: str = ""

    @property
    def clean(self) -> bool:
        return not (self.failed or self.broken or self.missing)


def touching_tests(workspace: Path, changed: Sequence[str]) -> list[str]:
    """Test files (pytest's naming) that are changed themselves, named after a changed file, or import it."""
    modules = {path: _module(path) for path in changed if path.endswith(".py")}
    if not modules:
        return []
    stems = {Path(path).stem for path in modules}
    imports = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in modules.values()))
    chosen = []
    for entry in walk(workspace, limit=20_000):
        if not re.fullmatch(r"test_.*\.py|.*_test\.py", entry.name):
            continue
        path = Path(entry.path)
        name = path.relative_to(workspace).as_posix()
        stem = path.stem.removeprefix("test_").removesuffix("_test")
        if name in modules or stem in stems or imports.search(_import_lines(path)):
            chosen.append(name)
    return chosen[:_MOST_FILES]


def _module(path: str) -> str:
    parts = list(Path(path).with_suffix("").parts)
    if parts[0] in ("src", "lib"):
        parts = parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _import_lines(path: Path) -> str:
    """The imports of a test file with `from a import b` also written as `a.b`."""
    lines = []
    text = path.read_text(encoding="utf-8", errors="replace")
    for match in re.finditer(r"^\s*(?:from\s+([\w.]+)\s+import\s+([^\n#]+)|import\s+([^\n#]+))", text, re.MULTILINE):
        if match[3]:
            lines.append(match[3])
        else:
            names = re.findall(r"\w+", match[2])
            lines.append(match[1])
            lines += [f"{match[1]}.{name}" for name in names]
    return "\n".join(lines)


def interpreter(workspace: Path) -> str | None:
    """The project's own Python: its environment's, else the active one's, else the machine's; never Fulgur's."""
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
    """Run these tests in a folder, importing from there whatever the environment has installed."""
    paths = os.pathsep.join(str(place) for place in (folder, folder / "src") if place.is_dir())
    options = "-q -rfE --tb=short --no-header -p no:cacheprovider --continue-on-collection-errors"
    return (
        f"cd {shlex.quote(str(folder))} && PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={shlex.quote(paths)} "
        f"{shlex.quote(python)} -m pytest {options} {shlex.join(tests)}"
    )


def read_run(exit_code: int | None, output: str, *, timed_out: bool) -> TestRun:
    """What a run of `pytest_command` says."""
    if timed_out or exit_code is None:
        return TestRun(missing=f"they took over {MOST_SECONDS:g} s", output=output)
    if "No module named pytest" in output:
        return TestRun(missing="there is no pytest in the project's environment", output=output)
    if exit_code in (126, 127):
        return TestRun(missing="the project's Python cannot be started", output=output)
    if exit_code == 5:
        return TestRun(missing="pytest found no test in them", output=output)
    failed = frozenset(_FAILED.findall(output))
    # 0 passed, 1 failed, 2 interrupted, 3 internal error, 4 wrong use, such as a conftest that cannot be imported
    broken = "" if exit_code in (0, 1) or failed else f"pytest ended with {exit_code}"
    return TestRun(failed, broken, output=output)


def judged(after: TestRun, before: TestRun | None) -> tuple[list[str], str]:
    """The problems that an edit brought, and what a person should know of the tests. `before` None: not known."""
    if after.missing:
        return [], f"tests not run: {after.missing}"
    if after.clean:
        return [], ""
    if before is None or before.missing:
        why = f" ({before.missing})" if before is not None else ""
        return [_told(after, after.failed)], f"whether these tests passed before the edit is not known{why}"
    if before.broken:
        return [], f"pytest could not run before the edit either: {before.broken}"
    fresh = after.failed - before.failed
    known = f"{len(before.failed)} of these tests failed before the edit too" if before.failed else ""
    if after.broken or fresh:
        return [_told(after, fresh)], known
    return [], known


def _told(run: TestRun, failed: frozenset[str]) -> str:
    named = ", ".join(sorted(failed)[:5]) or run.broken
    return f"{named}:\n{run.output[-4000:].strip()}"


def copy_as_before(workspace: Path, before: Mapping[str, bytes | None], into: Path) -> bool:
    """Copy what no rule leaves out, with the changed files as they were (None: not there); False: it is too much."""
    total = 0
    for entry in walk(workspace):
        total += entry.stat(follow_symlinks=False).st_size
        if total > _MOST_COPIED:
            return False
        target = into / Path(entry.path).relative_to(workspace)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(entry.path, target, follow_symlinks=False)
    for name, data in before.items():
        target = into / name
        if data is None:
            target.unlink(missing_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    return True
