"""Tools as clients name them, and the flat list a model is offered."""

from __future__ import annotations

from typing import Any

from fulgur.protocol.errors import ApiError, invalid

Tool = dict[str, Any]


def sort(tools: list[Tool]) -> tuple[list[Tool], list[Tool]]:
    """Function and custom tools, with namespaces flattened; and hosted tools, which the server would have to run."""
    flat: list[Tool] = []
    hosted: list[Tool] = []
    for index, tool in enumerate(tools):
        kind = tool.get("type")
        if kind == "namespace":
            inner = tool.get("tools")
            name = tool.get("name")
            if not isinstance(inner, list) or not all(isinstance(each, dict) for each in inner):
                raise invalid("A namespace needs a list of tools.", f"tools[{index}].tools", "invalid_type")
            offered, more = sort(inner)
            flat += [{**each, "namespace": name} for each in offered]
            hosted += more
        elif kind in ("function", "custom"):
            if not isinstance(tool.get("name"), str) or not tool["name"]:
                raise invalid("A tool needs a name.", f"tools[{index}].name", "missing_required_parameter")
            if not isinstance(tool.get("parameters", {}), dict | None):
                raise invalid("The parameters must be a JSON schema.", f"tools[{index}].parameters", "invalid_type")
            if not isinstance(tool.get("strict"), bool | None):
                raise invalid("'strict' must be true or false.", f"tools[{index}].strict", "invalid_type")
            flat.append(tool)
        else:
            hosted.append(tool)
    return flat, hosted


def without(hosted: list[Tool], *, tolerated: bool) -> list[str]:
    """Refuse hosted tools; where they are tolerated, return their names as fields that are ignored."""
    names = [str(tool.get("type"))[:64] for tool in hosted]
    if names and not tolerated:
        raise invalid(
            f"The tool '{names[0]}' would have to run on this server, which has no such tool. "
            "Leave it out, or offer a function.",
            "tools",
            "unsupported_tool",
        )
    return [f"tools:{name}" for name in names]


def echo(tools: list[Tool]) -> list[Tool]:
    """The tools as the response object repeats them: functions only, with the keys that must be there."""
    return [
        {"description": None, "parameters": None, "strict": None, **tool}
        for tool in tools
        if tool.get("type") == "function"
    ]


def check_choice(choice: str | dict[str, Any] | None, tools: list[Tool], hosted: list[Tool]) -> str | dict[str, Any]:
    """The choice in the form backends read; a 400 when it names a tool that is not offered."""
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise invalid(f"Invalid 'tool_choice': '{choice}'.", "tool_choice", "invalid_value")
        if choice == "required" and not tools and not hosted:
            raise invalid("'tool_choice' is 'required', but no tools are given.", "tool_choice", "invalid_value")
        return choice
    kind = choice.get("type")
    if kind == "allowed_tools":
        return choice
    if kind in ("function", "custom"):
        names = [tool["name"] for tool in tools if tool["type"] == kind]
        if choice.get("name") not in names:
            raise _not_offered(f"the {kind} '{choice.get('name')}'")
    elif kind not in [tool.get("type") for tool in hosted]:
        raise _not_offered(f"the tool '{kind}'")
    return choice


def allowed(
    choice: str | dict[str, Any], tools: list[Tool], hosted: list[Tool]
) -> tuple[str | dict[str, Any], list[Tool]]:
    """Apply `allowed_tools`: it narrows the tools, and its mode becomes the choice."""
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return choice, tools
    listed = choice.get("tools")
    if not isinstance(listed, list):
        raise invalid("'tool_choice.tools' must be a list.", "tool_choice.tools", "invalid_type")
    names = [each.get("name") or each.get("type") for each in listed if isinstance(each, dict)]
    for name in names:
        if name not in [tool.get("name") or tool.get("type") for tool in [*tools, *hosted]]:
            raise _not_offered(f"'{name}'")
    mode = choice.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise invalid(f"Invalid 'tool_choice.mode': '{mode}'.", "tool_choice.mode", "invalid_value")
    return mode, [tool for tool in tools if tool["name"] in names]


def _not_offered(what: str) -> ApiError:
    return invalid(f"'tool_choice' names {what}, which is not among the tools.", "tool_choice", "invalid_value")
