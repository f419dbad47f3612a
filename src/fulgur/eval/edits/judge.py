"""Judge whether an edit is what was asked for: by syntax trees of the whole project, or by running code in it."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fulgur.edit.refactor import CALLS, LOCAL, OVER_PROJECT
from fulgur.errors import FulgurError
from fulgur.eval.edits.instructions import Instruction
from fulgur.eval.projects import Project

Texts = Mapping[Path, str]  # changed files with their texts
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def problem_of(instruction: Instruction, project: Project, before: Texts, after: Texts) -> str:
    """Why the project's files on disk are not what was asked for; empty when they are.

    `before` and `after` are the texts of the changed files before and after the edit."""
    judge, problems = instruction.judge, []
    for way in ("replace", "or_replace"):
        if way in judge:
            problems.append(_differs(project, before, after, replaced(instruction, project, before, judge[way])))
    pairs = [judge["rename"]] if "rename" in judge else judge.get("or_rename", [])
    if pairs:
        expected = renamed(project, before, instruction, [tuple(pair) for pair in pairs])
        problems.append(_differs(project, before, after, expected, loose={name for pair in pairs for name in pair}))
    for way in ("run", "or_run"):
        if way in judge:
            problems.append(project.run(judge[way]))
    if not problems:
        return "nothing should change"
    return "" if "" in problems else problems[0]


def replaced(instruction: Instruction, project: Project, before: Texts, pairs: Iterable[list[str]]) -> dict[Path, str]:
    """The files with these texts replaced; each must occur exactly once."""
    expected: dict[Path, str] = {}
    for pair in pairs:
        name, (old, new) = (pair[0], pair[1:]) if len(pair) == 3 else (instruction.at.split(":")[0], pair)
        path = (project.folder / name).resolve()
        text = expected.get(path) or original(path, before)
        if text.count(old) != 1:
            raise FulgurError(f"{instruction.name}: {old!r} occurs {text.count(old)} times in {name}")
        expected[path] = text.replace(old, new)
    return expected


def renamed(
    project: Project, before: Texts, instruction: Instruction, pairs: list[tuple[str, ...]]
) -> dict[Path, ast.Module]:
    """Every file of the project that has one of these names as an identifier, with the name replaced."""
    target = (project.folder / instruction.at.split(":")[0]).resolve()
    within = instruction.judge.get("within")
    expected: dict[Path, ast.Module] = {}
    for path in sources(project):
        text = original(path, before)
        tree = ast.parse(text)
        earlier = ast.dump(tree)
        for old, new in pairs:
            if within is None:
                _rename(tree, old, new)
                continue
            if path == target:
                for node in ast.walk(tree):
                    if isinstance(node, FUNCTIONS) and node.name == within:
                        _rename(node, old, new)
            for call in ast.walk(tree):  # callers that pass it by keyword
                if isinstance(call, ast.Call) and _called(call) == within:
                    for passed in call.keywords:
                        passed.arg = new if passed.arg == old else passed.arg
        if ast.dump(tree) != earlier:
            expected[path] = tree
    return expected


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "id", None) or getattr(call.func, "attr", ""))


def _rename(tree: ast.AST, old: str, new: str) -> None:
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname"):
            if getattr(node, field, None) == old and not isinstance(node, ast.MatchAs):
                setattr(node, field, new)
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            node.names = [new if name == old else name for name in node.names]


def _differs(
    project: Project, before: Texts, after: Texts, expected: Mapping[Path, Any], loose: set[str] | None = None
) -> str:
    """The first file that differs from the expectation. `loose` names may or may not be renamed in strings."""
    for path in sorted({*expected, *before}):
        wanted: str | ast.Module = expected.get(path) or original(path, before)
        found: str = after.get(path) or original(path, before)
        if path.suffix != ".py":
            if wanted != found:
                return f"{path.relative_to(project.folder.resolve())} changes"
            continue
        trees = [ast.parse(side) if isinstance(side, str) else side for side in (wanted, found)]
        for tree in trees:
            _forget_strings(tree, loose or set())
        if ast.dump(trees[0]) != ast.dump(trees[1]):
            return f"{path.relative_to(project.folder.resolve())} is not as expected"
    return ""


def _forget_strings(tree: ast.AST, names: set[str]) -> None:
    if not names:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = re.sub(rf"\b(?:{'|'.join(map(re.escape, names))})\b", "NAME", node.value)


def original(path: Path, before: Texts) -> str:
    """A file as it was before the edit."""
    return before[path] if path in before else path.read_text(encoding="utf-8")


def sources(project: Project) -> list[Path]:
    """The project's Python files."""
    found = project.folder.resolve().rglob("*.py")
    return sorted(path for path in found if ".venv" not in path.parts)


_ABSENT = re.compile(r"(?:there (?:is|are) no|has no|no longer has|does not have)(?: \w+){0,2} `?([A-Za-z_][\w.]*)`?")
_DONE = re.compile(r"\balready\b|nothing to do", re.IGNORECASE)


def misleading(instruction: Instruction, reason: str, text: str) -> str:
    """What is false or useless to the user in a refusal; empty when nothing is. `text` is that of the named file."""
    internal: set[str] = {name for name in {*CALLS, *LOCAL, *OVER_PROJECT} if "_" in name}
    checks: list[Callable[[], str]] = [
        lambda: "special tokens" if "<|" in reason else "",
        lambda: next((f"internal name {n}" for n in re.findall(r"\w+", reason) if n in internal), ""),
        lambda: "a syntax error that the person did not make" if "invalid syntax" in reason else "",
        lambda: "asks which part, though it was named" if "which part" in reason and ":" in instruction.at else "",
    ]
    if instruction.possible:
        checks.append(lambda: "says it is done" if _DONE.search(reason) else "")
        words = set(re.findall(r"\w+", text)) & set(re.findall(r"\w+", instruction.say))
        words -= set(keyword.kwlist)
        checks.append(
            lambda: next((f"says there is no {n}" for n in _ABSENT.findall(reason) if n.split(".")[-1] in words), "")
        )
    wanted = instruction.judge.get("refuse", "")
    checks.append(lambda: "" if re.search(wanted, reason, re.IGNORECASE) else f"does not say {wanted}")
    return next((found for check in checks if (found := check())), "")
