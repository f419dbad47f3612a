"""Calls of the tools that were offered."""

from __future__ import annotations

import json

from fulgur.backends.base import Tool
from fulgur.text.parts import CallStart


def call_start(tool: Tool) -> CallStart:
    """The start of a call of this tool."""
    return CallStart(tool["name"], custom=tool["type"] == "custom", namespace=tool.get("namespace"))


def custom_input(arguments: str) -> str:
    """The input of a custom tool, which is offered as a function with one text: the text in the JSON of the call."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return str(value["input"]) if isinstance(value, dict) and "input" in value else arguments
