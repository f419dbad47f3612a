"""A guard: the quick tests that touch a changed file, run in the sandbox when there are any."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from fulgur.workspace.ignore import walk

MOST_SECONDS = 30.0
_MOST_FILES = 8


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


def pytest_command(workspace: Path, tests: Sequence[str]) -> str:
    """How they are run: the project's own Python if it has one."""
    own = workspace / ".venv/bin/python"
    python = str(own) if own.exists() else "python3"
    return f"{shlex.quote(python)} -m pytest -q -x --no-header -p no:cacheprovider {shlex.join(tests)}"
