"""Checks the content of items: a part that the model would not see is refused, never dropped."""

from __future__ import annotations

from typing import Any

from fulgur.backends.base import Conversation
from fulgur.protocol.errors import invalid
from fulgur.protocol.items import CLIENT_CALLS, Item, item_type
from fulgur.server.registry import ServedModel

_TEXT = frozenset({"input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text"})
# Kinds of items that belong to hosted tools: without those tools nothing can read them.
_HOSTED = frozenset(
    {
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
_READ = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "compaction",
        "item_reference",
        "additional_tools",
        "edit",
    }
)


def check_content(entry: ServedModel, content: Any, path: str) -> None:
    """Every part of a content (or of a tool's output) must be one that the model reads."""
    for place, part in enumerate(content if isinstance(content, list) else []):
        check_part(entry, str(part.get("type")), f"{path}[{place}]")


def check_part(entry: ServedModel, kind: str, path: str) -> None:
    if kind in _TEXT or (kind in ("input_image", "image_url") and entry.backend.capabilities.vision):
        return
    if "responses" in entry.backend.dialects:
        return  # the upstream reads items as they are
    what = {"input_image": "see images", "image_url": "see images", "input_audio": "hear audio"}.get(kind)
    what = what or f"read content parts of type '{kind}'"
    raise invalid(f"The model '{entry.name}' cannot {what}.", path, "model_not_capable")


def check_calls(conversation: Conversation, path: str = "") -> None:
    """Check that each tool output has its call, unless the conversation before it was compacted.

    `path` is the field that an error names, for doors whose input is not a list of items.
    """
    outputs = {
        item["call_id"]: index
        for index, item in enumerate(conversation.items)
        if item_type(item) in CLIENT_CALLS.values()
    }
    part: Conversation | None = conversation
    while outputs and part is not None:
        for item in part.items:
            kind = item_type(item)
            if kind == "compaction":
                return
            if kind in CLIENT_CALLS:
                outputs.pop(item["call_id"], None)
        part = part.parent
    for call_id, index in outputs.items():
        field = path or f"input[{index}].call_id"
        raise invalid(f"No tool call found with call_id '{call_id}'.", field, "call_not_found")


def check_kinds(items: list[Item]) -> list[str]:
    """Refuse items of hosted tools; return the names of the unknown kinds, which are left out."""
    unknown: list[str] = []
    for index, item in enumerate(items):
        kind = item_type(item)
        if kind in _HOSTED:
            raise invalid(
                f"Items of type '{kind}' belong to hosted tools, which this server does not have.",
                f"input[{index}].type",
                "unsupported_item",
            )
        if kind not in _READ:
            unknown.append(f"input[{index}]:{kind}")
    return unknown
