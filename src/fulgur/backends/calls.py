"""How a tool that was offered is called."""

from __future__ import annotations

import json

from fulgur.backends.base import Tool
from fulgur.text.parts import CallStart


def call_start(tool: Tool) -> CallStart:
    """The start of a call of this tool."""
    return CallStart(tool["name"], custom=tool["type"] == "custom", namespace=tool.get("namespace"))


def custom_input(arguments: str) -> str:
    """A custom tool is offered as a function with one text: that text, from the JSON a model wraps it in."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return str(value["input"]) if isinstance(value, dict) and "input" in value else arguments
