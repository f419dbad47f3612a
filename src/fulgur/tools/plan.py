"""The tool by which a model writes down its plan and updates it, so that a person sees how far it is."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fulgur.protocol.agent import PlanStep
from fulgur.tools.base import Arguments, Report, Tool, ToolResult

_MOST_STEPS = 50


class PlanArguments(Arguments, frozen=True):
    """Arguments of `update_plan`."""

    plan: Annotated[list[PlanStep], Meta(description="every step, in order", min_length=1, max_length=_MOST_STEPS)]
    explanation: Annotated[str, Meta(description="why it changed")] = ""


async def _update(args: PlanArguments, report: Report) -> ToolResult:
    done = sum(step.status == "completed" for step in args.plan)
    return ToolResult(True, f"{done} of {len(args.plan)} steps are done", plan=tuple(args.plan))


def plan_tool() -> Tool[PlanArguments]:
    """Return the tool `update_plan`, under the name that models know."""
    return Tool(
        "update_plan",
        "Write the plan of a task with several steps, and again whenever a step begins or ends.",
        PlanArguments,
        _update,
        lambda a: f"plan: {next((s.step for s in a.plan if s.status == 'in_progress'), 'done')}",
        parallel=False,
        kind="think",
    )
