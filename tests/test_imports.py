"""The import rules of AGENTS.md, read from the source: who may know whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_rules import broken, sources

SOURCE = Path(__file__).parents[1] / "src" / "fulgur"
INSIDE = {"engine", "model", "kernels", "backends", "cluster", "server"}  # what stands behind the client
BELOW = {"server", "edit", "agent", "ui", "client", "backends", "cluster"}
BARE = {"numpy", "safetensors", "tokenizers", "torch", "cuda"}  # what a bare GPU machine has

# folder -> folders of ours it must not import
FORBIDDEN = {
    "protocol": {path.name for path in SOURCE.iterdir() if path.is_dir()} - {"protocol"},
    "text": BELOW,
    "model": BELOW,
    "kernels": BELOW,
    "engine": BELOW,
    "client": {*INSIDE, "edit", "agent", "ui"},
    "workspace": {*INSIDE, "client", "edit", "agent", "ui"},
    "sandbox": {*INSIDE, "client", "edit", "agent", "ui"},
    "edit": {*INSIDE, "agent", "ui"},
    "tools": {*INSIDE, "agent", "ui"},
    "agent": {*INSIDE, "ui"},
    "ui": INSIDE,
}
# Commands about the engine and the server themselves, not about a model's answers.
EXCEPT = {f"ui/commands/{name}.py" for name in ("serve", "admin", "bench", "cluster", "doctor", "models", "simulate")}
# folders that run with nothing but BARE and the standard library
PLAIN = ("model", "kernels", "engine")
# third-party names that only one folder may import
OWNED = {"jinja2": "text", "llguidance": "text"}


def imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def files(folder: str) -> list[Path]:
    return sorted((SOURCE / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_folders_know_only_what_they_may(folder: str) -> None:
    wrong = [
        f"{path.relative_to(SOURCE)}:{line} imports {name}"
        for path in files(folder)
        if path.relative_to(SOURCE).as_posix() not in EXCEPT
        for name, line in imports(path)
        if name.startswith("fulgur.") and name.split(".")[1] in FORBIDDEN[folder]
    ]
    assert not wrong


@pytest.mark.parametrize("folder", PLAIN)
def test_bare_machine_folders_import_little(folder: str) -> None:
    allowed = BARE | set(sys.stdlib_module_names) | {"fulgur"}
    wrong = [
        f"{path.relative_to(SOURCE)}:{line} imports {name}"
        for path in files(folder)
        for name, line in imports(path)
        if name.split(".")[0] not in allowed
    ]
    assert not wrong


@pytest.mark.parametrize("name", OWNED)
def test_some_libraries_have_one_owner(name: str) -> None:
    wrong = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] != OWNED[name]
        if any(found.split(".")[0] == name for found, _ in imports(path))
    ]
    assert not wrong


HEAVY = "torch numpy tokenizers llguidance jinja2 aiohttp textual rich fulgur.engine fulgur.model"


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("fulgur.ui.cli", HEAVY),
        # A completion takes less time than importing these.
        ("fulgur.ui.commands.complete, fulgur.edit.complete, fulgur.edit.model", f"{HEAVY} asyncio ssl msgspec"),
    ],
)
def test_starting_a_command_loads_no_heavy_module(modules: str, heavy: str) -> None:
    code = f"import sys, {modules}; print(*(m for m in {heavy.split()!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_one_place_starts_processes_and_one_runs_git() -> None:
    assert [wrong for path in sources() for wrong in broken(path)] == []


def test_test_files_have_names_of_their_own() -> None:
    """Two of one name in folders that are no packages stop the whole suite; alone each of them runs."""
    files = [path for path in Path(__file__).parent.rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    assert sorted(path.name for path in files) == sorted({path.name for path in files})
