"""Report the results of an evaluation of the agent, as rows and as text."""

from __future__ import annotations

from statistics import median
from typing import Any

import msgspec

from fulgur.eval.agent.attempt import Result

Row = dict[str, Any]


def line(result: Result) -> str:
    """A line of text about one task."""
    mark = "✓" if result.resolved else "✗"
    tokens = f"{result.input_tokens + result.output_tokens:,} tokens"
    told = f"{mark} {result.name:18}{result.seconds:>7.1f} s  {tokens:>15}  {result.calls:>3} calls"
    return told + (f"  {result.problem[:160]}" if result.problem else "")


def rows_of(results: list[Result]) -> list[Row]:
    """Rows for all tasks together, for each kind, and for each task with all its data."""
    rows: list[Row] = []

    def add(name: str, value: float, unit: str, **more: Any) -> None:
        rows.append({"name": f"agent.{name}", "value": value, "unit": unit, **more})

    for kind in ("", *dict.fromkeys(result.kind for result in results)):
        some = [result for result in results if kind in ("", result.kind)]
        right = sum(result.resolved for result in some)
        add(
            ".".join(filter(None, ("resolved", kind))), round(100 * right / len(some), 1), "%", n=len(some), right=right
        )
    add("seconds", round(sum(result.seconds for result in results), 1), "s")
    add("seconds_p50", round(median(result.seconds for result in results), 2), "s")
    add("input_tokens", sum(result.input_tokens for result in results), "tokens")
    add("output_tokens", sum(result.output_tokens for result in results), "tokens")
    if all(result.cost is not None for result in results):
        add("cost", round(sum(result.cost or 0.0 for result in results), 4), "$")
    add("tool_calls", sum(result.calls for result in results), "")
    add("tool_errors", sum(result.tool_errors for result in results), "")
    for result in results:
        told = {key: value for key, value in msgspec.to_builtins(result).items() if key != "name"}
        add(f"task.{result.name}", int(result.resolved), "resolved", **told)
    return rows


def show(rows: list[Row]) -> None:
    """Print all rows except those of single tasks."""
    print()
    for row in rows:
        if not row["name"].startswith("agent.task."):
            count = f"  ({row['right']} of {row['n']})" if "right" in row else ""
            print(f"{row['name']:26}{row['value']:>12} {row['unit']}{count}")
