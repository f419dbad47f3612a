"""What an answer must look like, as a grammar: JSON schemas, forced tool calls, custom tools with a grammar."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fulgur.backends.base import Tool, Turn
from fulgur.backends.calls import call_start
from fulgur.backends.compile import GrammarBusy, GrammarCompiler
from fulgur.errors import FulgurError
from fulgur.protocol.errors import ApiError, invalid
from fulgur.text.grammar import GrammarSpec
from fulgur.text.parts import CallStart


@dataclass(frozen=True)
class Constraint:
    """A grammar for the answer. `call`: the answer is that call's arguments or input. `tail` begins the answer."""

    grammar: GrammarSpec
    call: CallStart | None = None
    tail: str = ""


def constraint_of(turn: Turn) -> Constraint | None:
    """What the turn forces, if anything."""
    choice = turn.tool_choice
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        tool = next(tool for tool in turn.tools if tool["name"] == choice["name"] and tool["type"] == choice["type"])
        return call_constraint(tool)
    if choice == "required" and len(turn.tools) == 1:
        return call_constraint(turn.tools[0])
    if choice == "required":
        return Constraint(_schema(_any_call(turn.tools)), tail="<tool_call>\n")
    if turn.format is not None:
        schema = turn.format.get("schema") if turn.format["type"] == "json_schema" else {"type": "object"}
        return Constraint(_schema(schema))
    return None


def call_constraint(tool: Tool) -> Constraint:
    """A call of this one tool."""
    start = call_start(tool)
    if tool["type"] == "function":
        schema = tool.get("parameters") or {"type": "object"}
        tail = f'<tool_call>\n{{"name": {json.dumps(tool["name"])}, "arguments": '
        return Constraint(_schema(schema), start, tail)
    tail = f'<tool_call>\n{{"name": {json.dumps(tool["name"])}, "input": '
    return Constraint(input_grammar(tool) or GrammarSpec("regex", r"(?s:.+)"), start, tail)


def input_grammar(tool: Tool) -> GrammarSpec | None:
    """The grammar a custom tool's input must follow, if it has one."""
    format: dict[str, Any] = tool.get("format") or {}
    if tool["type"] != "custom" or format.get("type") != "grammar":
        return None
    syntax, definition = format.get("syntax"), format.get("definition")
    if syntax not in ("lark", "regex") or not isinstance(definition, str):
        raise invalid("A tool's grammar needs 'syntax' (lark or regex) and 'definition'.", "tools", "invalid_value")
    return GrammarSpec(syntax, definition)


def _any_call(tools: list[Tool]) -> dict[str, Any]:
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {"name": {"const": tool["name"]}, "arguments": _arguments(tool)},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for tool in tools
        ]
    }


def _arguments(tool: Tool) -> dict[str, Any]:
    if tool["type"] == "custom":
        return {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return tool.get("parameters") or {"type": "object"}


def _schema(schema: Any) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(schema))


async def check_grammars(turn: Turn, constraint: Constraint | None, compiler: GrammarCompiler) -> None:
    """A 400 for a grammar that cannot be followed, before anything is generated."""
    specs = [] if constraint is None else [constraint.grammar]
    if turn.tool_choice != "none":
        specs += [spec for tool in turn.tools if (spec := input_grammar(tool)) is not None]
    for spec in specs:
        param = "text.format.schema" if spec.kind == "json_schema" else "tools"
        try:
            await compiler.check(spec)
        except GrammarBusy as error:
            raise ApiError(
                429,
                "rate_limit_exceeded",
                str(error),
                param=param,
                type="rate_limit_error",
                headers={"retry-after": "3"},
            ) from None
        except FulgurError as error:
            raise invalid(str(error), param, "invalid_grammar") from None
