"""How often the check of introduced names is wrong: `python tests/agent/guard_rates.py [FUNCTIONS] [SEED]`.

Real functions of installed packages are judged as if each had just been written: every alarm is a false one (or a bug
of the package). Then one attribute or keyword of each is misspelt, to see how many of those are noticed.
"""

from __future__ import annotations

import ast
import contextlib
import random
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = (
    "requests", "rich", "aiohttp", "jinja2", "pygments", "prompt_toolkit", "attr", "httpx", "click", "hypothesis",
    "_pytest", "networkx", "pathspec", "msgspec", "openai", "mcp", "werkzeug", "starlette", "urllib3", "yaml", "numpy",
    "transformers", "pydantic", "jsonschema", "anyio",
)  # fmt: skip
LIBRARY = ("json", "asyncio", "http", "email", "logging", "unittest", "argparse.py", "subprocess.py")


def functions(count: int, seed: int) -> Iterator[tuple[Path, Path, str, ast.AST]]:
    """Workspace, file, source and function."""
    pure, library = Path(sysconfig.get_paths()["purelib"]), Path(sysconfig.get_paths()["stdlib"])
    tops = [pure / name for name in PACKAGES] + [library / name for name in LIBRARY]
    files: list[tuple[Path, Path]] = []
    for top in tops:
        found = [top] if top.suffix else sorted(top.rglob("*.py"))
        files += [(top if top.is_dir() else top.parent, path) for path in found if path.is_file()]
    generator = random.Random(seed)
    made = 0
    seen: set[tuple[Path, int]] = set()
    while made < count:
        # A package first, so that the largest one does not fill the sample.
        top = generator.choice([t for t in tops if t.exists()])
        workspace, path = generator.choice([f for f in files if f[1].is_relative_to(top)] or files)
        with contextlib.suppress(SyntaxError, ValueError):
            source = path.read_text(encoding="utf-8")
            nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
            fresh = [node for node in nodes if (path, node.lineno) not in seen]
            if fresh:
                node = generator.choice(fresh)
                seen.add((path, node.lineno))
                made += 1
                yield workspace, path, source, node


def without(source: str, node: Any) -> str:
    """The source with the function's body taken out."""
    lines = source.splitlines(keepends=True)
    first, last = node.body[0].lineno, node.end_lineno
    indent = " " * node.body[0].col_offset
    if first == node.lineno:
        return "".join(lines[: first - 1] + lines[last:])
    return "".join([*lines[: first - 1], f"{indent}pass\n", *lines[last:]])


def misspelt(source: str, node: Any, generator: random.Random) -> tuple[str, str] | None:
    """One attribute or keyword with two letters exchanged, and the wrong name."""
    places: list[tuple[int, int, str]] = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Load):
            places.append((inner.end_lineno or 0, (inner.end_col_offset or 0) - len(inner.attr), inner.attr))
        elif isinstance(inner, ast.keyword) and inner.arg:
            places.append((inner.lineno, inner.col_offset, inner.arg))
    places = [place for place in places if len(place[2]) > 3 and place[2][1] != place[2][2]]
    if not places:
        return None
    line, column, name = generator.choice(places)
    wrong = name[0] + name[2] + name[1] + name[3:]
    lines = source.splitlines(keepends=True)
    raw = lines[line - 1].encode()
    lines[line - 1] = (raw[:column] + wrong.encode() + raw[column + len(name.encode()) :]).decode()
    return "".join(lines), wrong


def main(count: int, seed: int) -> None:
    from fulgur.edit.checks.members.__main__ import answer
    from fulgur.edit.checks.members.judge import set_up

    set_up(Path(tempfile.mkdtemp()))
    sys.setrecursionlimit(3000)
    generator = random.Random(seed)
    alarms = judged = caught = tried = left = 0
    took: list[float] = []
    for workspace, path, source, node in functions(count, seed):

        def ask(before: str, after: str, workspace: Path = workspace, path: Path = path) -> list[dict[str, Any]]:
            said: list[dict[str, Any]] = []
            request = {"seconds": 3, "workspace": str(workspace), "path": str(path), "before": before, "after": after}
            answer(request, said.append)
            return said

        began = time.perf_counter()
        said = ask(without(source, node), source)
        took.append(time.perf_counter() - began)
        judged += said[-1]["judged"]
        left += said[-1]["left"]
        problems = [message for message in said if "text" in message]
        alarms += bool(problems)
        for problem in problems:
            print(f"FALSE {path}:{problem['line']}: {problem['text']}", flush=True)
        change = misspelt(source, node, generator)
        if change is not None and not problems:
            tried += 1
            caught += any(message.get("name") == change[1] for message in ask(source, change[0]))
    took.sort()
    print(f"functions {count}, with a false alarm {alarms} ({alarms / count:.2%}); things judged {judged}, left {left}")
    print(f"misspelt {tried}, noticed {caught} ({caught / max(tried, 1):.1%})")
    middle, late = took[len(took) // 2], took[int(len(took) * 0.95)]
    print(f"seconds: median {middle:.3f}, p95 {late:.3f}, longest {took[-1]:.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
