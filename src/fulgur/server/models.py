"""`/v1/models`: the OpenAI list and the Codex catalog in one answer."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from fulgur.server.answers import json_answer, server_of
from fulgur.server.registry import Registry, ServedModel

INSTRUCTIONS = (
    "You are a coding agent that works in the user's terminal, in their repository. Read before you change. "
    "Make the smallest change that does what was asked, in the style of the code around it. Use the tools to look, "
    "edit and run; edit files with apply_patch. Run the tests that touch what you changed. When you are done, say "
    "what you did in a few sentences. Never undo changes that are not yours."
)


async def listing(request: web.Request) -> web.Response:
    models = server_of(request).models
    await models.describe()
    return json_answer(catalog(models))


async def one(request: web.Request) -> web.Response:
    models = server_of(request).models
    entry = models.get(request.match_info["id"].rstrip("/"))
    await models.describe()
    return json_answer(openai_model(entry))


def catalog(models: Registry) -> dict[str, Any]:
    entries = list(models.entries.values())
    return {
        "object": "list",
        "data": [openai_model(entry) for entry in entries],
        "models": [codex_model(entry, place) for place, entry in enumerate(entries) if entry.backend.capabilities.chat],
    }


def openai_model(entry: ServedModel) -> dict[str, Any]:
    """The OpenAI object, with what the model can do under `capabilities` (ours)."""
    capabilities = entry.backend.capabilities
    model: dict[str, Any] = {
        "id": entry.name,
        "object": "model",
        "created": entry.created,
        "owned_by": "fulgur",
        "context_window": capabilities.context,
        "backend": entry.backend.kind,
        "capabilities": {
            name: getattr(capabilities, name)
            for name in ("chat", "tools", "fim", "edit", "steering", "grammar", "reasoning", "vision", "logprobs")
        },
    }
    if entry.model.price is not None:
        price = entry.model.price
        cached = price.input if price.cached_input is None else price.cached_input
        model["price"] = {"input": price.input, "cached_input": cached, "output": price.output}
    return model


def codex_model(entry: ServedModel, place: int) -> dict[str, Any]:
    """One model as Codex expects it. A wrong field silently kills its whole catalog, so the tests run Codex itself."""
    capabilities = entry.backend.capabilities
    efforts = [("low", "quick"), ("medium", "balanced"), ("high", "thorough")] if capabilities.reasoning else []
    return {
        "slug": entry.name,
        "display_name": entry.model.display_name or entry.name,
        "description": f"{entry.name} on this Fulgur server",
        "default_reasoning_level": "medium" if efforts else None,
        "supported_reasoning_levels": [{"effort": effort, "description": text} for effort, text in efforts],
        "shell_type": "shell_command" if capabilities.tools else "disabled",
        "visibility": "list",
        "supported_in_api": True,
        "priority": place,
        "base_instructions": entry.model.instructions or INSTRUCTIONS,
        "supports_reasoning_summaries": capabilities.reasoning,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": "freeform" if capabilities.tools else None,
        "truncation_policy": {"mode": "tokens", "limit": max(2_000, min(10_000, capabilities.context // 8))},
        "supports_parallel_tool_calls": False,
        "context_window": capabilities.context,
        "max_context_window": capabilities.context,
        "auto_compact_token_limit": capabilities.context * 8 // 10,
        "effective_context_window_percent": 95,
        "experimental_supported_tools": [],
        "input_modalities": ["text", "image"] if capabilities.vision else ["text"],
        "use_responses_lite": True,
    }
