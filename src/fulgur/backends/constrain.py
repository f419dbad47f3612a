"""Turns the required form of an answer into a grammar: JSON schemas, forced tool calls, custom tools with a grammar."""

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
from fulgur.text.split import call_opening, text_opening

TOOL_CALL = "<tool_call>"
_VALUES = ("const", "default", "enum", "examples")  # keywords whose values are not schemas


@dataclass(frozen=True)
class Constraint:
    """A grammar for the answer. `call`: the answer is that call's arguments or input. `tail` begins the answer.
    `format`: the answer's call format, if it is not the model's own."""

    grammar: GrammarSpec
    call: CallStart | None = None
    tail: str = ""
    format: str | None = None


def constraint_of(turn: Turn, format: str) -> Constraint | None:
    """The constraint that the turn sets, if any, for a model that writes calls in this format."""
    choice = turn.tool_choice
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        tool = next(tool for tool in turn.tools if tool["name"] == choice["name"] and tool["type"] == choice["type"])
        return call_constraint(tool, format)
    if choice == "required" and len(turn.tools) == 1:
        return call_constraint(turn.tools[0], format)
    if choice == "required":  # the JSON also names the tool
        return Constraint(_schema(_any_call(turn.tools)), tail=f"{TOOL_CALL}\n", format="hermes")
    if turn.format is not None and turn.format["type"] in ("regex", "lark"):
        return Constraint(GrammarSpec(turn.format["type"], turn.format["source"]), tail=text_opening(format))
    if turn.format is not None:
        schema = turn.format.get("schema") if turn.format["type"] == "json_schema" else {"type": "object"}
        return Constraint(_schema(schema), tail=text_opening(format))
    return None


def call_constraint(tool: Tool, format: str) -> Constraint:
    """A call of this one tool."""
    start, name = call_start(tool), tool["name"]
    if tool["type"] == "function":
        return Constraint(_schema(tool.get("parameters") or {"type": "object"}), start, call_opening(format, name))
    grammar = input_grammar(tool) or GrammarSpec("regex", r"(?s:.+)")
    return Constraint(grammar, start, call_opening(format, name, "input"))


def input_grammar(tool: Tool) -> GrammarSpec | None:
    """The grammar a custom tool's input must follow, if it has one."""
    format: dict[str, Any] = tool.get("format") or {}
    if tool["type"] != "custom" or format.get("type") != "grammar":
        return None
    syntax, definition = format.get("syntax"), format.get("definition")
    if syntax not in ("lark", "regex") or not isinstance(definition, str):
        raise invalid("A tool's grammar needs 'syntax' (lark or regex) and 'definition'.", "tools", "invalid_value")
    return GrammarSpec(syntax, definition)


def own_grammar(tool: Tool) -> GrammarSpec | None:
    """The grammar for the input of every call of a tool, even of a call that the model begins by itself."""
    if tool["type"] == "function":
        return _schema(tool.get("parameters") or {"type": "object"}) if tool.get("strict") else None
    return input_grammar(tool)


def _any_call(tools: list[Tool]) -> dict[str, Any]:
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool["name"]},
                    "arguments": _moved(_arguments(tool), f"#/anyOf/{place}/properties/arguments"),
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for place, tool in enumerate(tools)
        ]
    }


def _moved(schema: Any, root: str) -> Any:
    """The schema with references to its own root (`#/$defs/…`) rewritten for its place in another one."""
    if isinstance(schema, list):
        return [_moved(part, root) for part in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: part if key in _VALUES else _moved(part, root) for key, part in schema.items()}
    match schema.get("$ref"):
        case "#":
            moved["$ref"] = root
        case str(ref) if ref.startswith("#/"):
            moved["$ref"] = root + ref[1:]
    return moved


def _arguments(tool: Tool) -> dict[str, Any]:
    if tool["type"] == "custom":
        return {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return tool.get("parameters") or {"type": "object"}


def _schema(schema: Any) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(schema))


async def check_grammars(turn: Turn, constraint: Constraint | None, compiler: GrammarCompiler) -> None:
    """Raise a 400 for a grammar that cannot be followed, before anything is generated."""
    specs = [] if constraint is None else [constraint.grammar]
    if turn.tool_choice != "none":
        specs += [spec for tool in turn.tools if (spec := own_grammar(tool)) is not None]
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
