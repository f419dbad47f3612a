"""Who may start processes, run git and open files of a workspace, read from the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "fulgur"

# These run as programs of their own, or are the one place.
STARTS_PROCESSES = {"sandbox/start.py", "sandbox/landlock_enter.py", "tools/shell_host.py"}
ALSO = {
    "backends/compile.py": "os.fork",  # a grammar is compiled in a copy of the process that may die
    "edit/checks/tests.py": "sys.executable",  # named in a command for the sandbox, not started
}
RUNS_GIT = {"sandbox/git.py"}

MODULES = {"subprocess", "pty", "multiprocessing", "concurrent.futures.process"}
CALLS = {
    "os": {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell", "subprocess"},
    "shutil": {"which"},
    "sys": {"executable"},
    "concurrent.futures": {"ProcessPoolExecutor"},
}


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def place(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def process_starts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module.split(".")[0] in MODULES:
                yield node.lineno, node.module
            for alias in node.names:
                if alias.name in CALLS.get(node.module, ()) or alias.name.startswith(("exec", "spawn")) * (
                    node.module == "os"
                ):
                    yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute) and node.attr in ("subprocess_exec", "subprocess_shell"):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, name = node.value.id, node.attr
            if name in CALLS.get(module, ()) or (module == "os" and name.startswith(("exec", "spawn"))):
                yield node.lineno, f"{module}.{name}"


def git_commands(tree: ast.AST) -> Iterator[int]:
    """Lists of words that begin with git, and `program("git")`."""
    for node in ast.walk(tree):
        first: ast.AST | None = None
        if isinstance(node, ast.List) and node.elts:
            first = node.elts[0]
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func).split(".")[-1] in ("program", "which"):
            first = node.args[0]
        if isinstance(first, ast.Constant) and first.value == "git":
            yield first.lineno


@pytest.mark.parametrize("path", sources(), ids=place)
def test_one_place_starts_processes(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if place(path) not in STARTS_PROCESSES:
        found = [(line, what) for line, what in process_starts(tree) if what != ALSO.get(place(path))]
        assert found == [], "use fulgur.sandbox.start"
    if place(path) not in RUNS_GIT:
        assert list(git_commands(tree)) == [], "use fulgur.sandbox.git"


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess", "from subprocess import run", "import os\nos.system('x')", "import os\nos.execv('x', [])",
        "from os import fork", "import asyncio\nasyncio.create_subprocess_exec('x')", "import pty\npty.fork()",
        "import multiprocessing", "import sys\n[sys.executable, '-m', 'x']", "import shutil\nshutil.which('rg')",
        "from multiprocessing import Process", "loop.subprocess_exec(None)", "from os import execvp",
    ],
)  # fmt: skip
def test_the_rule_has_teeth(code: str) -> None:
    assert list(process_starts(ast.parse(code)))


def test_git_is_seen() -> None:
    assert list(git_commands(ast.parse("run(['git', 'status'])"))) == [1]
    assert list(git_commands(ast.parse("start.program('git')"))) == [1]


def test_files_of_the_workspace_are_read_without_following_links() -> None:
    """The modules that read whole workspaces open files by `beneath` only."""
    readers = ("workspace/ignore.py", "workspace/symbols.py", "workspace/snapshots.py", "workspace/ask.py")
    readers += ("workspace/files.py", "workspace/undo.py", "tools/reading.py", "tools/plain_search.py")
    allowed = {"self._path", "path", "self.cache", "self._journal"}  # files of Fulgur's own home
    wrong = []
    for name in readers:
        for node in ast.walk(ast.parse((SOURCE / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("read_bytes", "read_text", "open", "unlink", "rmdir"):
                owner = ast.unparse(node.value)
                if owner != "os" and owner not in allowed:
                    wrong.append(f"{name}:{node.lineno} {owner}.{node.attr}")
    assert wrong == []
