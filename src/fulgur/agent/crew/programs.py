"""The commands by which a person puts a crew to work: task lists, plans, variants. Each runs as a turn of the
session."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fulgur.agent.agent import Agent
from fulgur.agent.crew.plan import make_plan
from fulgur.agent.crew.run_tasks import TaskRun, alone
from fulgur.agent.crew.tasks import parse_tasks, read_list
from fulgur.agent.crew.team import Team
from fulgur.agent.crew.variants import Variants, check_count
from fulgur.agent.route.relay import AUTO
from fulgur.agent.session.log import fork_session
from fulgur.errors import FulgurError, UsageError
from fulgur.protocol.agent import VariantsRanked
from fulgur.workspace.copies import Merged

LIST = "TASKS.md"
USUAL_VARIANTS = 5


def need_words(agent: Agent, what: str) -> None:
    """UsageError if the model only edits: it cannot answer a prompt that asks for prose."""
    status = agent.status()
    if status.way == "edit" and agent.settings.model != AUTO:
        raise UsageError(
            f"{what} needs a model that chats and calls tools; {status.model} only edits",
            hint="/model lists other models.",
        )


async def run_tasks(agent: Agent, path: Path, jobs: int = 4) -> bool:
    """Work through a task list; True when every task is done."""
    team = _team(agent)
    read_list(path)  # report a wrong path before a turn starts

    async def work() -> str:
        with alone(agent.settings, path) as (files, copies):
            crew = await team.replace_crew(files, copies)
            try:
                finished = await TaskRun(crew, path, agent.tell_event, jobs, agent.state.member).run()
            finally:
                await team.close_crew()
        tasks = parse_tasks(read_list(path), str(path))
        open_tasks = [f"{task.number} {task.text}" for task in tasks if not task.done]
        if finished:
            return f"All {len(tasks)} tasks of {path.name} are done."
        return f"{len(tasks) - len(open_tasks)} of {len(tasks)} tasks are done. Not done: {'; '.join(open_tasks)}"

    return await agent.as_turn(f"/tasks {path.name}", work)


async def make_variants(agent: Agent, count: int, task: str) -> Variants:
    """Make several solutions of one task; `take_variant` chooses one."""
    if not task.strip():
        raise UsageError("/variants needs a task", hint="/variants 5 make load() faster")
    check_count(count)
    crew = _team(agent).crew()
    home, log = agent.settings.home, agent.state.log
    base = await asyncio.to_thread(fork_session, home, log.path, subagent=True) if agent.state.turns else None
    variants = Variants(crew, task, agent.tell_event)

    async def work() -> str:
        try:
            ranked = await variants.make(count, base.id if base is not None else None)
        finally:
            if base is not None:
                base.path.unlink(missing_ok=True)
        for variant in ranked:
            agent.state.member(crew.finished(variant.member, Merged()))
        agent.tell_event(VariantsRanked(task=task, variants=tuple(variant.info() for variant in ranked)))
        passing = sum(variant.passes for variant in ranked)
        order = ", ".join(str(variant.number) for variant in ranked)
        return f"{passing} of {count} variants pass their checks; the best first: {order}."

    try:
        await agent.as_turn(f"/variants {count} {task}", work)
    except BaseException:
        variants.close()
        raise
    return variants


async def take_variant(agent: Agent, variants: Variants, number: int) -> bool:
    """Apply one variant's changes and drop the others."""

    async def work() -> str:
        finished, diffs = await variants.take(number)
        for diff in diffs:
            agent.note_change(diff)
        variants.close()
        agent.tell_event(VariantsRanked(task=variants.task))
        by = f", by {', '.join(finished.models)}" if finished.models else ""  # empty if no model was needed
        return f"Took variant {number}{by}: {finished.text}"

    return await agent.as_turn(f"/take {number}", work)


async def plan(agent: Agent, wish: str, path: Path) -> bool:
    """Write a task list for a wish, for the person to edit; True when there is one."""
    if not wish.strip():
        raise UsageError("/plan needs a goal", hint="/plan add a cache to the loader")
    if not agent.settings.text("router.deep"):
        need_words(agent, "a plan")

    async def work() -> str:
        tasks = await make_plan(_team(agent).crew(), wish, path)
        listed = "\n".join(f"{task.number}. {f'[{task.tag}] ' if task.tag else ''}{task.text}" for task in tasks)
        return f"{path.name} is the plan:\n{listed}\nEdit it, then `/tasks {path.name}` runs it."

    return await agent.as_turn(f"/plan {wish}", work)


def _team(agent: Agent) -> Team:
    if agent.team is None:
        raise FulgurError("a subagent cannot start subagents")
    return agent.team


async def run_line(agent: Agent, line: str) -> None:
    """Run a command that starts such a turn, as typed: /tasks, /plan, /variants, /take."""
    name, _, argument = line.strip().partition(" ")
    argument = argument.strip()
    match name:
        case "/tasks":
            await run_tasks(agent, agent.workspace / (argument or LIST))
        case "/plan":
            await plan(agent, argument, agent.workspace / LIST)
        case "/variants":
            number, _, task = argument.partition(" ")
            if not number.isdigit():
                number, task = str(USUAL_VARIANTS), argument
            _team(agent).variants = await make_variants(agent, int(number), task)
        case "/take":
            made = _team(agent).variants
            if made is None or not argument.isdigit():
                raise UsageError("/take needs the number of a variant", hint="/variants makes variants.")
            await take_variant(agent, made, int(argument))
        case _:
            raise UsageError(f"there is no {name}")
