"""The body of a Responses create, from settings and history. Keys that the model does not support are left out."""

from __future__ import annotations

from typing import Any

from fulgur.agent.loop.context import TurnContext
from fulgur.agent.loop.images import without_images
from fulgur.agent.session.history import Item
from fulgur.tools.base import Tool


def request_body(
    context: TurnContext, items: list[Item], *, tools: list[Tool[Any]], format: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Build the request body; `format` is a `text.format` for structured output."""
    settings, abilities = context.settings, context.link.info.abilities
    body: dict[str, Any] = {
        "model": context.link.info.name,
        "instructions": context.instructions,
        # Only the server that wrote reasoning items understands them, and it still holds them.
        "input": [
            item if "vision" in abilities else without_images(item) for item in items if item.get("type") != "reasoning"
        ],
        "store": False,
    }
    if tools and "tools" in abilities:
        body["tools"] = [tool.spec() for tool in tools]
        body["parallel_tool_calls"] = settings.flag("features.parallel_tools")
    effort, summary = settings.text("model_reasoning_effort"), settings.text("model_reasoning_summary")
    if (effort or summary) and "reasoning" in abilities:
        body["reasoning"] = {key: value for key, value in (("effort", effort), ("summary", summary)) if value}
    text: dict[str, Any] = {}
    if (verbosity := settings.text("model_verbosity")) and "verbosity" in abilities:
        text["verbosity"] = verbosity
    if format is not None:
        text["format"] = format
    if text:
        body["text"] = text
    if tier := service_tier(context):
        body["service_tier"] = tier
    if most := settings.integer("model_max_output_tokens"):
        body["max_output_tokens"] = most
    return body


def service_tier(context: TurnContext) -> str | None:
    """The requested service tier. Our server and people call it `fast`; elsewhere it is `priority`."""
    tier = context.settings.text("service_tier")
    return "priority" if tier == "fast" and not context.link.connection.is_fulgur else tier
