"""`python -m lab.peers.refactorings PYTHON`: refactorings sampled with a seed, done by our tool and by others.

PYTHON is the interpreter of an environment with rope, jedi, libcst and basedpyright. Every refactoring starts from a
fresh copy of the same pinned package; afterwards the package is imported and its own tests run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from fulgur.edit.document import Document
from fulgur.edit.editor import Proposal, Task, propose
from fulgur.edit.region import Region
from fulgur.errors import FulgurError
from fulgur.eval.edits.refactorings import Drawn, draw
from fulgur.eval.projects import PACKAGES, Project, build
from fulgur.sandbox import start

COUNTS = {"renames": 5, "moves": 3, "extracts": 4, "inlines": 3, "asyncs": 2}  # per package
# Which of them each tool has. jedi inlines only variables; libcst renames only names of modules.
TOOLS = {
    "ours": set(COUNTS),
    "rope": {"renames", "moves", "extracts", "inlines"},
    "jedi": {"renames", "extracts"},
    "libcst": {"renames"},
    "basedpyright": {"renames"},
}
QUICK = ("xmltodict", "unidiff", "schedule", "addict")


def ours(project: Project, drawn: Drawn) -> tuple[float, str]:
    document = Document.open(drawn.path)
    first, last = drawn.span
    text = document.text
    region = Region(first, last, text[:first], text[first:last], text[last:], 1, 1)
    began = time.perf_counter()
    try:
        result = propose(Task(document, region, None, root=project.folder), drawn.call)
    except FulgurError as error:
        return time.perf_counter() - began, error.message
    if not isinstance(result, Proposal):
        return time.perf_counter() - began, result.reason
    for change in result.changes():
        change.path.write_bytes(change.after or b"")
    return time.perf_counter() - began, ""


def other(tool: str, python: Path, project: Project, drawn: Drawn, place: Path) -> tuple[float, str]:
    new = drawn.call.args[-1] if drawn.call.args else ""
    case = {"folder": str(project.folder), "path": str(drawn.path), "kind": drawn.kind, "new": new,
            "name": drawn.call.args[0] if drawn.call.args else "", "start": drawn.span[0], "end": drawn.span[1],
            "source": project.package.source}  # fmt: skip
    file = place / "case.json"
    file.write_text(json.dumps(case), encoding="utf-8")
    argv = [str(python), str(Path(__file__).with_name("worker.py")), tool, str(file)]
    try:
        done = start.run(argv, project.folder, seconds=120)
        found = json.loads(done.stdout.decode().splitlines()[-1])
    except (start.TimeoutExpired, IndexError, ValueError):
        return 120.0, "it did not answer"
    return found["seconds"], found["refused"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", type=Path, help="an interpreter that has the other tools")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(QUICK), help="packages, with commas")
    parser.add_argument("--json", type=Path, help="write every result")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="fulgur-peers-") as place:
        for name in args.only.split(","):
            plain = Path(place) / "plain" / name
            plain.mkdir(parents=True)
            project = build(PACKAGES[name], plain.resolve())
            before = project.test()
            for drawn in draw(project, COUNTS, args.seed):
                original = {p: p.read_bytes() for p in project.folder.rglob("*.py") if ".venv" not in p.parts}
                for tool in (tool for tool, kinds in TOOLS.items() if drawn.kind in kinds):
                    took, refused = (
                        ours(project, drawn)
                        if tool == "ours"
                        else other(tool, args.python, project, drawn, Path(place))
                    )
                    imports, tests = "", ""
                    if not refused:
                        imports = project.imports()
                        after = project.test()
                        tests = after.broken or after.missing or ", ".join(sorted(after.failed - before.failed)[:2])
                    for path in set(project.folder.rglob("*.py")) - set(original):
                        if ".venv" not in path.parts:
                            path.unlink()
                    for path, data in original.items():
                        if path.read_bytes() != data:
                            path.write_bytes(data)
                    found = {"seconds": took, "refused": refused, "imports": imports, "tests": tests}
                    results.append(
                        {"tool": tool, "package": name, "kind": drawn.kind, "call": drawn.call.args, **found}
                    )
            print(name, flush=True)
            if args.json:
                args.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    show(results)


def show(results: list[dict[str, object]]) -> None:
    groups: defaultdict[tuple[str, str], list[dict[str, object]]] = defaultdict(list)
    for result in results:
        if result["refused"] != "-":  # a tool without this refactoring
            groups[str(result["kind"]), str(result["tool"])].append(result)
    print(f"{'':10}{'':14}{'tried':>8}{'refused':>9}{'imports':>9}{'tests':>7}{'p50 s':>8}")
    for kind in COUNTS:
        for tool in TOOLS:
            if some := groups[kind, tool]:
                refused = sum(bool(r["refused"]) for r in some)
                imports = sum(bool(r["imports"]) for r in some)
                tests = sum(bool(r["tests"]) and not r["imports"] for r in some)
                seconds = statistics.median(float(str(r["seconds"])) for r in some)
                print(f"{kind:10}{tool:14}{len(some):>8}{refused:>9}{imports:>9}{tests:>7}{seconds:>8.2f}")


if __name__ == "__main__":
    main()
