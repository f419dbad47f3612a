"""Refactorings over whole projects, sampled by a seed: what they break, and how long they take."""

from __future__ import annotations

import ast
import contextlib
import random
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fulgur.edit.document import Document
from fulgur.edit.editor import Proposal, Task, propose
from fulgur.edit.refactor.source import FUNCTIONS, Source
from fulgur.edit.region import Region
from fulgur.errors import FulgurError
from fulgur.eval.edits.judge import sources
from fulgur.eval.edits.marks import Marks
from fulgur.eval.projects import Project
from fulgur.text.edit_format import Call

Row = dict[str, Any]


@dataclass
class Drawn:
    """One sampled refactoring of a project, and its result."""

    kind: str  # one of KINDS
    path: Path
    call: Call
    span: tuple[int, int]
    refused: str = ""
    seconds: float = 0.0
    marked: bool = False
    broken: str = ""


# How many of each kind are sampled, over all projects together.
KINDS = {"renames": 60, "signatures": 30, "moves": 30, "extracts": 30, "asyncs": 30, "inlines": 30}


def draw(project: Project, counts: Mapping[str, int], seed: int) -> list[Drawn]:
    """Sample refactorings of the package's own names and functions, without its tests."""
    found: list[Drawn] = []
    for path in sources(project):
        if "test" in path.name or any("test" in part for part in path.relative_to(project.folder.resolve()).parts):
            continue
        found += _choices(path)
    random_source = random.Random(f"{seed} {project.package.stem}")
    random_source.shuffle(found)
    return [one for kind, count in counts.items() for one in [d for d in found if d.kind == kind][:count]]


def _choices(path: Path) -> Iterator[Drawn]:
    if path.name in ("setup.py", "conftest.py") or "docs" in path.parts:
        return
    source = Source(path.read_text(encoding="utf-8"))
    for node in ast.walk(source.tree):
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)) or node.name.startswith("__"):
            continue
        owner = source.parents.get(node)
        if not isinstance(owner, (ast.Module, ast.ClassDef)):
            continue
        span = source.whole_lines(node)
        name = f"{owner.name}.{node.name}" if isinstance(owner, ast.ClassDef) else node.name
        yield Drawn("renames", path, Call("rename", (name, f"{node.name}_renamed")), span)
        if isinstance(node, FUNCTIONS):
            plain = [arg.arg for arg in node.args.args if arg.arg not in ("self", "cls")]
            if plain:
                call = Call("rename_parameter", (node.name, plain[-1], f"{plain[-1]}_renamed"))
                yield Drawn("signatures", path, call, span)
            yield Drawn("signatures", path, Call("add_parameter", (node.name, "extra_option=None")), span)
            yield Drawn("asyncs", path, Call("make_async"), span)
            yield from _extracts(source, path, node)
        if isinstance(owner, ast.Module) and _returns_only(source, node):
            yield Drawn("inlines", path, Call("inline_function", (node.name,)), span)
        if isinstance(owner, ast.Module):
            yield Drawn("moves", path, Call("move_symbol", (node.name, "moved_here")), span)


def _returns_only(source: Source, node: ast.AST) -> bool:
    """Whether a node is a function that is one `return`, docstring aside."""
    if not isinstance(node, ast.FunctionDef) or not isinstance(node.body[-1], ast.Return):
        return False
    return len(node.body) == 1 + (source.docstring(node) is not None)


def _extracts(source: Source, path: Path, function: ast.AST) -> Iterator[Drawn]:
    """Extractions of two or three consecutive statements, in any block of a function."""
    for node in ast.walk(function):
        block = getattr(node, "body", None)
        if not isinstance(block, list) or isinstance(node, ast.ClassDef):
            continue
        for start in range(len(block) - 1):
            last = block[min(start + 2, len(block) - 1)]
            span = (source.whole_lines(block[start])[0], source.whole_lines(last)[1])
            if source.docstring(node) is not block[start]:
                yield Drawn("extracts", path, Call("extract_function", ("extracted_part",)), span)


def carry_out(project: Project, drawn: Drawn, marks: Marks) -> None:
    """Plan a refactoring as the editor does, write it, test whether the project still works, and restore everything."""
    document = Document.open(drawn.path)
    start, end = drawn.span
    region = Region(start, end, document.text[:start], document.text[start:end], document.text[end:], 1, 1)
    began = time.perf_counter()
    try:
        result = propose(Task(document, region, None, root=project.folder), drawn.call)
    except FulgurError as error:
        drawn.refused = error.message
        return
    finally:
        drawn.seconds = time.perf_counter() - began
    if not isinstance(result, Proposal):
        drawn.refused = result.reason
        return
    changes = result.changes()
    drawn.marked, told = marks.of(result)
    if not drawn.marked:
        drawn.broken = told.split(":\n")[0] if "::" in told else ""  # the editor named the tests that fail
        return
    try:
        for change in changes:
            change.path.write_bytes(change.after or b"")
        drawn.broken = marks.broken()
    finally:
        for change in changes:
            if change.before is None:
                change.path.unlink()
            else:
                change.path.write_bytes(change.before)


def run_all(projects: list[Project], seed: int) -> list[Row]:
    """Carry out all samples; returns rows for every kind, over all projects together."""
    done: list[Drawn] = []
    counts = {kind: count // len(projects) + 1 for kind, count in KINDS.items()}
    for project in projects:
        marks = Marks(project)
        with contextlib.closing(marks), contextlib.chdir(project.folder):
            for drawn in draw(project, counts, seed):
                carry_out(project, drawn, marks)
                done.append(drawn)
                if drawn.broken:
                    told = " ".join((drawn.call.name, *drawn.call.args))
                    place = f"{drawn.path.name} {drawn.span}"
                    print(f"{'✓ ' * drawn.marked}{project.package.name}: {place} {told}: {drawn.broken}", flush=True)
    rows: list[Row] = []
    for kind, wanted in KINDS.items():
        some = [drawn for drawn in done if drawn.kind == kind][:wanted]
        shown = [drawn for drawn in some if not drawn.refused]
        values = {
            "drawn": len(some),
            "refused": len(some) - len(shown),
            "with_check_mark": sum(drawn.marked for drawn in shown),
            "broken_with_check_mark": sum(drawn.marked and bool(drawn.broken) for drawn in shown),
            "broken_and_said": sum(not drawn.marked and bool(drawn.broken) for drawn in shown),
        }
        rows += [{"name": f"edits.{kind}.{name}", "value": value, "unit": ""} for name, value in values.items()]
        seconds = statistics.median(drawn.seconds for drawn in some) if some else 0.0
        rows.append({"name": f"edits.{kind}.seconds_p50", "value": round(seconds, 3), "unit": "s"})
    for row in rows:
        print(f"{row['name']:40}{row['value']:>10} {row['unit']}")
    return rows
