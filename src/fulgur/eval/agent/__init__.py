"""`fulgur eval agent`: which tasks the agent resolves, with any model, in small repositories with failing tests.

Repairs are real packages with proven bugs (`repairs.py`); features and a game are written by hand (`wanted.py`). Each
task is carried out by `fulgur exec` (`attempt.py`) and judged by the original tests in a fresh copy (`tasks.py`). The
models `scripted` and `scripted-idle` test the harness: the first must resolve everything, the second nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fulgur.errors import UsageError
from fulgur.eval.agent.attempt import Runner, add_runner_arguments, attempt, runner_from
from fulgur.eval.agent.progress import Progress
from fulgur.eval.agent.report import line, rows_of, show

if TYPE_CHECKING:
    from fulgur.eval.agent.tasks import Task

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this evaluation."""
    add_runner_arguments(parser, 600.0)
    parser.add_argument(
        "--tasks", metavar="NAMES", help="only these, separated by commas; `semver-*` is all of a package"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="tasks at the same time (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="the seed that picks the mistakes (default 1)")
    parser.add_argument("--list", action="store_true", help="list the tasks and what was done to each, then exit")


def run(args: argparse.Namespace) -> list[Row]:
    """Run all tasks except those that an earlier, interrupted run completed."""
    if args.jobs < 1:
        raise UsageError(f"--jobs must be above 0, not {args.jobs}")
    with tempfile.TemporaryDirectory(prefix="fulgur-agent-", ignore_cleanup_errors=True) as place:
        tasks = chosen(all_tasks(Path(place).resolve(), args.seed), args.tasks)
        if args.list:
            for task in tasks:
                print(f"{task.name:18}{task.kind:9}{task.about}")
            return []
        asked = {"model": args.model, "config": args.config, "seed": args.seed, "timeout": args.timeout}
        with Progress(args.json, asked) as progress:
            if progress.results:
                print(f"{len(progress.results)} tasks are already done ({progress.file})", flush=True)
            left = [task for task in tasks if task.name not in progress.results]
            with runners(left, args) as runner_of, ThreadPoolExecutor(args.jobs) as pool:
                work_through(left, runner_of, pool, progress)
            results = [progress.results[task.name] for task in tasks]
            progress.finish()
    rows = rows_of(results)
    show(rows)
    return rows


def all_tasks(place: Path, seed: int) -> list[Task]:
    """Repairs, features and games; their folders are created in `place`."""
    from fulgur.eval.agent.repairs import repairs
    from fulgur.eval.agent.tasks import must_run_in_sandbox
    from fulgur.eval.agent.wanted import wanted
    from fulgur.eval.projects import PACKAGES, build, environment

    must_run_in_sandbox(environment() / "bin/python")
    projects = {name: build(package, place) for name, package in PACKAGES.items()}
    found = repairs(projects, seed, place)
    passing = {task.origin.name: task.expected for task in found}
    return found + wanted(projects, passing, place / "empty")


def chosen(tasks: list[Task], names: str | None) -> list[Task]:
    """The tasks that match the names, in their original order."""
    if names is None:
        return tasks
    patterns = names.split(",")
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(task.name, pattern) for task in tasks):
            known = ", ".join(task.name for task in tasks)
            raise UsageError(f"there is no task {pattern}", hint=f"One of: {known}.")
    return [task for task in tasks if any(fnmatch.fnmatchcase(task.name, pattern) for pattern in patterns)]


@contextlib.contextmanager
def runners(tasks: list[Task], args: argparse.Namespace) -> Iterator[dict[str, Runner]]:
    """The runner of each task. Scripted models run on a dedicated server, with one model per task."""
    from fulgur.bench.scripted_server import ScriptedServer
    from fulgur.eval.agent.scripted import MODELS, script

    if args.model not in MODELS or not tasks:
        yield dict.fromkeys([task.name for task in tasks], runner_from(args))
        return
    answers = MODELS[args.model]
    with tempfile.TemporaryDirectory(prefix="fulgur-scripted-") as home:
        scripts = {task.name: script(answers(task)) for task in tasks}
        with ScriptedServer(Path(home), scripts) as server:
            yield {
                task.name: replace(runner_from(args), model=task.name, environment=server.environment) for task in tasks
            }


def work_through(tasks: list[Task], runner_of: dict[str, Runner], pool: ThreadPoolExecutor, progress: Progress) -> None:
    """Run all tasks in the pool; each result is saved to disk before it is printed."""
    waiting = [pool.submit(attempt, task, runner_of[task.name]) for task in tasks]
    try:
        for done in as_completed(waiting):
            result = done.result()
            progress.add(result)
            print(line(result), flush=True)
    except BaseException:
        for future in waiting:
            future.cancel()
        raise
