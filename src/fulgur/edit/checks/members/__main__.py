"""The judging process: reads one JSON request per line, and answers each with problems and then one `done`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Loaded while the model is still writing: almost every file needs these.
_COMMON = """
import os, re
from pathlib import Path
Path('a').name, ''.join, [].append, {}.get, os.sep, re.compile('').match, open('a').read
"""


def _search_path(workspace: Path, path: Path) -> list[Path]:
    """Where the project's modules are: its own folders first, then its environment, or ours when it has none."""
    roots = [workspace, workspace / "src", workspace / "lib"]
    if not (path.parent / "__init__.py").exists():
        roots.insert(0, path.parent)  # a script imports from its own folder
    own = [*workspace.glob(".venv/lib/python*/site-packages"), *workspace.glob("venv/lib/python*/site-packages")]
    packages = own or [Path(entry) for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    linked: list[Path] = []
    for folder in packages:
        for link in folder.glob("*.pth"):
            lines = link.read_text(encoding="utf-8", errors="replace").splitlines()
            linked += [Path(line) for line in lines if line.startswith("/") and Path(line).is_dir()]
    return [folder for folder in dict.fromkeys([*roots, *packages, *linked]) if folder.is_dir()]


def answer(request: dict[str, Any], say: Any) -> None:
    """Judge what one edit introduces, within its time budget."""
    import jedi

    from fulgur.edit.checks.members.evidence import Evidence
    from fulgur.edit.checks.members.introduced import Item, introduced
    from fulgur.edit.checks.members.judge import Judge

    deadline = time.monotonic() + request["seconds"]
    workspace, path = Path(request["workspace"]), Path(request["path"])
    after = request["after"]
    paths = _search_path(workspace, path)
    stdlib = [entry for entry in sys.path if entry and not entry.endswith(("site-packages", "dist-packages"))]
    project = jedi.Project(
        workspace, sys_path=[*map(str, paths), *stdlib], smart_sys_path=False, load_unsafe_extensions=False
    )
    evidence = Evidence(workspace, paths)
    evidence.source = after
    judge = Judge(after, path, project, evidence)
    waiting = introduced(request["before"], after)
    total, judged, rounds = len(waiting), 0, 0
    said: set[tuple[int, str]] = set()
    again: list[Item] = []  # items that timed out; the files read for them are cached for the retry
    while waiting and time.monotonic() < deadline:
        item = waiting.pop(0)
        try:
            problems = judge.judge(item, deadline, request["seconds"] / 4)  # a hard item leaves time for others
        except Exception:  # jedi fails on some code: then it has no opinion
            problems = []
        if problems is None:
            again.append(item)
        else:
            judged += 1
            for problem in problems:
                if (problem.line, problem.name) not in said:
                    said.add((problem.line, problem.name))
                    say({"line": problem.line, "name": problem.name, "text": problem.text})
        if not waiting:
            waiting, again, rounds = (again, [], rounds + 1) if rounds == 0 else ([], again, rounds)
    say({"done": True, "judged": judged, "left": total - judged})


def main() -> None:
    """Serve requests until stdin closes."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a library that prints must not corrupt the answers
    os.nice(5)  # the model runs at the same time
    sys.setrecursionlimit(3000)
    from fulgur.edit.checks.members.judge import set_up

    with tempfile.TemporaryDirectory() as cache:
        set_up(Path(cache))

        def say(message: dict[str, Any]) -> None:
            output.write(json.dumps(message) + "\n")
            output.flush()

        first = {"seconds": 3, "workspace": cache, "path": f"{cache}/a.py", "before": "", "after": _COMMON}
        answer(first, lambda _: None)
        say({"ready": True})
        for line in sys.stdin:
            answer(json.loads(line), say)


if __name__ == "__main__":
    main()
