"""Who may start processes and run git, read from the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "fulgur"

# These run as programs of their own, or are the one place.
STARTS_PROCESSES = {"sandbox/start.py", "sandbox/landlock_enter.py", "tools/shell_host.py"}
ALSO = {
    "backends/compile.py": "os.fork",  # a grammar is compiled in a copy of the process that may die
    "eval/run_programs.py": "os.fork",  # started inside the sandbox; each program in a copy that may die
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


def broken(path: Path) -> list[str]:
    """What a module does that it must leave to `sandbox/start.py` or `sandbox/git.py`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = place(path)
    found = []
    if name not in STARTS_PROCESSES:
        starts = [(line, what) for line, what in process_starts(tree) if what != ALSO.get(name)]
        found += [f"{name}:{line} {what}: use fulgur.sandbox.start" for line, what in starts]
    if name not in RUNS_GIT:
        found += [f"{name}:{line} runs git: use fulgur.sandbox.git" for line in git_commands(tree)]
    return found
