"""Scripted models that test the harness: one solves every task with real tool calls, one does nothing.

A scripted model reads, patches and runs the tests like any other; only its answers come from the task's solution.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from typing import Any

from fulgur.eval.agent.tasks import Task

Steps = list[dict[str, Any]]


def solve(task: Task) -> list[Steps]:
    """Answers that solve the task: run the tests, read the files, patch, run the tests again."""
    look: list[Steps] = [[{"call": "read", "arguments": {"path": name}}] for name in task.start]
    paths = "PYTHONPATH=src " if task.counts.startswith("src/") else ""
    visible = " ".join(test for test in task.tests if test not in task.hidden)
    command = f"{paths}.venv/bin/python -m pytest -q {visible}"
    tests: Steps = [{"call": "shell", "arguments": {"command": command}}]
    before = [tests] if task.kind == "repair" else [[{"call": "list", "arguments": {}}]]
    after = [] if task.kind == "game" else [tests]
    return [*before, *look, [{"call": "apply_patch", "arguments": {"patch": patch(task)}}], *after, [{"text": "Done."}]]


def idle(task: Task) -> list[Steps]:
    """One answer that changes nothing."""
    return [[{"text": "It looks right to me."}]]


MODELS: dict[str, Callable[[Task], list[Steps]]] = {"scripted": solve, "scripted-idle": idle}


def script(answers: list[Steps]) -> str:
    """The script (TOML) that gives these answers in order, and then repeats the last one."""
    replies = [{"times": 1, "steps": steps} for steps in answers[:-1]] + [{"steps": answers[-1]}]
    lines = []
    for reply in replies:
        steps = ", ".join(_toml(step) for step in reply["steps"])  # type: ignore[attr-defined]
        lines += ["[[reply]]", *(["times = 1"] if "times" in reply else []), f"steps = [{steps}]"]
    return "\n".join(lines) + "\n"


def patch(task: Task) -> str:
    """The patch from the agent's initial folder to the solution, in the format of `apply_patch`."""
    lines = ["*** Begin Patch"]
    for name, text in task.solution.items():
        path = task.origin / name
        old = task.start.get(name) or (path.read_text(encoding="utf-8") if path.is_file() else None)
        if old is None:
            lines += [f"*** Add File: {name}", *(f"+{line}" for line in text.splitlines())]
            continue
        lines.append(f"*** Update File: {name}")
        # Use much context: the bug may be in one of several similar places.
        diff = difflib.unified_diff(old.splitlines(), text.splitlines(), n=12, lineterm="")
        lines += ["@@" if line.startswith("@@") else line for line in list(diff)[2:]]
    return "\n".join([*lines, "*** End Patch"])


def _toml(value: Any) -> str:
    """Tables, strings and numbers as TOML, which has the same strings as JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)
