"""`fulgur tasks run|show|plan`: work through a task list in Markdown, each task with the model that its tag names."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from fulgur.errors import UsageError
from fulgur.ui.flags import add_config_flags, at_least_one, settings_from
from fulgur.ui.foreign import note, one_row, out, out_json, whole_text

if TYPE_CHECKING:
    from fulgur.config.settings import Settings
    from fulgur.protocol.agent import AgentEvent

MARKS = {"open": "☐", "running": "◐", "done": "✓", "failed": "✗"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="run|show|plan")
    run_ = actions.add_parser("run", help="work through a list; finished tasks are ticked off in it")
    run_.add_argument("file", type=Path, nargs="?", default=Path("TASKS.md"), help="the list (default TASKS.md)")
    run_.add_argument(
        "-j", "--jobs", type=at_least_one, default=4, metavar="N", help="run at most this many at a time (default 4)"
    )
    run_.add_argument("--json", action="store_true", help="every event as one line of JSON")
    show = actions.add_parser("show", help="the tasks of a list and what each waits for")
    show.add_argument("file", type=Path, nargs="?", default=Path("TASKS.md"), help="the list (default TASKS.md)")
    plan = actions.add_parser("plan", help="let a read-only model write a list, for you to edit")
    plan.add_argument("wish", help="the goal of the plan")
    plan.add_argument("-o", "--output", type=Path, default=Path("TASKS.md"), metavar="FILE", help="where to write it")
    plan.add_argument("--json", action="store_true", help="every event as one line of JSON")
    for sub in (run_, show, plan):
        add_config_flags(sub)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 if every task is done, 1 if one failed, 130 if interrupted."""
    settings = settings_from(args)
    if settings.sources[("approval_policy",)] == "default":
        settings = settings.with_changes(overrides=["approval_policy=never"])  # nobody is there to answer
    if args.action == "show":
        return _show(settings.workspace / args.file)
    work = _run(args, settings) if args.action == "run" else _plan(args, settings)
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        note("fulgur: interrupted; finished tasks are ticked off, `fulgur tasks run` continues")
        return 130


def _show(path: Path) -> int:
    from fulgur.agent.crew.tasks import parse_tasks, read_list

    for task in parse_tasks(read_list(path), str(path)):
        after = f"  (after {', '.join(map(str, sorted(task.after)))})" if task.after else ""
        tag = f"[{task.tag}] " if task.tag else ""
        mark = "done" if task.done else "failed" if task.mark == "!" else "open"
        out(f"{MARKS[mark]} {task.number:>2} {tag}{task.text}{after}")
    return 0


async def _run(args: argparse.Namespace, settings: Settings) -> int:
    from fulgur.agent.crew.crew import Crew
    from fulgur.agent.crew.run_tasks import TaskRun, alone

    path = (settings.workspace / args.file).resolve()
    printer = _Printer(args.json)
    with alone(settings, path) as (files, copies):
        crew = Crew(settings, files, printer.show, copies=copies)
        try:
            done = await TaskRun(crew, path, printer.show, args.jobs).run()
        finally:
            await crew.close()
    if done and not printer.began:
        note(f"nothing to do: every task of {path.name} is done")
    return 0 if done else 1


async def _plan(args: argparse.Namespace, settings: Settings) -> int:
    from fulgur.agent.crew.crew import Crew
    from fulgur.agent.crew.plan import make_plan
    from fulgur.agent.crew.run_tasks import alone

    if not (wish := whole_text(args.wish).strip()):
        raise UsageError("tasks plan needs a goal", hint='fulgur tasks plan "add a cache to the loader"')
    path = (settings.workspace / args.output).resolve()
    show = _Printer(args.json).show
    with alone(settings, path) as (files, copies):
        crew = Crew(settings, files, show, copies=copies)
        try:
            await make_plan(crew, wish, path)
        finally:
            await crew.close()
    if not args.json:
        _show(path)
    note(f"{path}: edit it, then `fulgur tasks run {args.output}`")
    return 0


class _Printer:
    """Prints events as JSON lines, or one line for each task that starts or ends."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._states: dict[int, str] = {}
        self._runs = False
        self.began = False

    def show(self, event: AgentEvent) -> None:
        from fulgur.protocol import agent as events
        from fulgur.ui.tui.blocks import duration

        self.began |= isinstance(event, events.MemberStarted)
        if self._as_json:
            out_json(events.encode(event).decode())
            return
        match event:
            case events.TasksChanged():
                for task in event.tasks:
                    before = self._states.get(task.number, "open")
                    self._states[task.number] = task.state
                    if task.state == before or (task.state == "done" and not task.models and before == "open"):
                        continue
                    took = f"  {', '.join(task.models)} · {duration(task.seconds)}" if task.seconds else ""
                    out(f"{MARKS[task.state]} {task.number:>2} {one_row(task.text)}{took}")
                runs = any(task.state == "running" for task in event.tasks)
                if self._runs and not runs:
                    note(f"{sum(task.state == 'done' for task in event.tasks)} of {len(event.tasks)} done")
                self._runs = runs
            case events.MemberFinished() if event.how != "done" or event.conflicts:
                why = f"conflict in {', '.join(event.conflicts)}" if event.conflicts else event.how
                note(f"  {event.member}: {why}: {one_row(event.text)[:300]}")
            case events.MemberTold() if event.kind in ("check", "warning"):
                note(f"  {event.member}: {one_row(event.text)[:300]}")
            case events.Warned():
                note(f"warning: {event.message}" + (f" ({event.hint})" if event.hint else ""))
