"""The tool by which a model gives tasks to subagents; the calls of one step run in parallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fulgur.agent.crew.crew import Crew
from fulgur.agent.crew.roles import Role
from fulgur.protocol.agent import MemberFinished
from fulgur.tools.base import Arguments, Report, Tool, ToolResult

_MOST_DIFF = 12_000  # characters of a diff that could not be merged


class DelegateArguments(Arguments, frozen=True):
    """The role, and the task for it."""

    role: str
    task: str


def delegate_tool(
    crew: Callable[[], Crew], roles: Mapping[str, Role], record: Callable[[MemberFinished], None]
) -> Tool[DelegateArguments]:
    """Return the tool. `crew` makes the crew when the first task is given; `record` keeps each end in the
    transcript."""

    async def run(arguments: DelegateArguments, report: Report) -> ToolResult:
        role = roles.get(arguments.role)
        if role is None:
            return ToolResult(False, f"There is no role {arguments.role!r}. Roles: {', '.join(roles)}")
        finished, merged = await crew().run(role, arguments.task)
        record(finished)
        ok = finished.how == "done" and not merged.conflicts and bool(merged.diffs or not finished.left_out)
        return ToolResult(ok, told(finished), merged.diffs)

    listed = "; ".join(f"{role.name}: {role.description or 'no description'}" for role in roles.values())
    return Tool(
        "delegate",
        "Give a task to a subagent and get its last message. It sees only the task, so say everything it needs. "
        f"Several calls in one step run in parallel. Roles: {listed}",
        DelegateArguments,
        run,
        lambda arguments: f"{arguments.role}: {arguments.task}",
        mutates=True,
        parallel=True,
        asks=lambda arguments: (
            "a subagent asks no questions while it works in its copy; you are asked before its changes are merged"
        ),
    )


def told(finished: MemberFinished) -> str:
    """The tool output that the delegating model reads."""
    parts = [finished.text or "(no message)"]
    if finished.how != "done":
        parts.append(f"It ended early ({finished.how}); none of its changes are in the project.")
    if finished.paths:
        parts.append(f"Changed: {', '.join(finished.paths)}")
    if finished.conflicts:
        diff, left = finished.diff[:_MOST_DIFF], len(finished.diff) - _MOST_DIFF
        parts.append(
            f"Not merged: its changes conflict with others in {', '.join(finished.conflicts)}. "
            f"This is what it would have changed; apply what still fits yourself:\n{diff}"
        )
        if left > 0:
            parts.append(f"[{left} more characters are in {finished.patch}]")
    if finished.left_out:
        parts.append(finished.left_out)
    return "\n\n".join(parts)
