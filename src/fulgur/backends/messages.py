"""Turns items into chat messages, as chat templates and Chat Completions servers read them."""

from __future__ import annotations

import json
from typing import Any

from fulgur.backends.base import Conversation, Tool, Turn
from fulgur.backends.opaque import unseal
from fulgur.protocol.items import Item, item_type, text_of

Message = dict[str, Any]


def to_messages(turn: Turn, *, developer: bool = False, images: bool = False) -> list[Message]:
    """The turn as chat messages. `developer`: the reader knows that role; else it is `system`."""
    messages: list[Message] = []
    if turn.instructions:
        messages.append({"role": "system", "content": turn.instructions})
    messages += _said(turn.conversation, images=images)
    if not developer:
        messages = [
            {**message, "role": "system"} if message["role"] == "developer" else message for message in messages
        ]
    return _join_systems(messages)


def _said(conversation: Conversation, *, images: bool) -> list[Message]:
    """The messages of a conversation. Those of earlier turns are the same objects as before: nobody changes them."""

    def more(before: list[Message], part: Conversation) -> list[Message]:
        messages = before.copy()
        if messages and messages[-1]["role"] == "assistant":  # what comes now may belong to it
            messages[-1] = last = messages[-1].copy()
            if "tool_calls" in last:
                last["tool_calls"] = last["tool_calls"].copy()
        for item in part.items:
            _add(messages, item, images=images)
        return messages

    key = "messages and images" if images else "messages"
    start: list[Message] = []
    said = conversation.fold(key, start, more)
    conversation.forget(key)
    return said


def _add(messages: list[Message], item: Item, *, images: bool) -> None:
    kind = item_type(item)
    if kind == "message":
        content = _content(item) if images else text_of(item)
        if item["role"] == "assistant":
            _assistant(messages)["content"] += text_of(item)
        else:
            messages.append({"role": item["role"], "content": content})
    elif kind == "reasoning":
        _assistant(messages)["reasoning_content"] = text_of({"content": item.get("summary") or item.get("content")})
    elif kind in ("function_call", "custom_tool_call"):
        _assistant(messages).setdefault("tool_calls", []).append(_call(item))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        output = {"content": item.get("output") or ""}
        content = _content(output) if images else text_of(output)
        messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
    elif kind == "compaction":
        summary = str(unseal(item["encrypted_content"]).get("summary", ""))
        messages.append({"role": "system", "content": f"Notes on the conversation so far:\n{summary}"})


def _assistant(messages: list[Message]) -> Message:
    """The assistant message being assembled: what it said, thought and called in one turn."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _call(item: Item) -> dict[str, Any]:
    custom = item_type(item) == "custom_tool_call"
    arguments = json.dumps({"input": item["input"]}) if custom else item["arguments"]
    function = {"name": item["name"], "arguments": arguments}
    return {"id": item["call_id"], "type": "function", "function": function}


def _content(item: Item) -> str | list[dict[str, Any]]:
    """Content with its images, for servers that see them."""
    content = item["content"]
    if isinstance(content, str) or not any(part.get("type") == "input_image" for part in content):
        return text_of(item)
    return [
        {"type": "image_url", "image_url": {"url": part.get("image_url")}}
        if part.get("type") == "input_image"
        else {"type": "text", "text": part.get("text", "")}
        for part in content
    ]


def _join_systems(messages: list[Message]) -> list[Message]:
    """Join the leading system messages: many templates know only one, at the start."""
    count = 0
    while count < len(messages) and messages[count]["role"] == "system":
        count += 1
    if count < 2:
        return messages
    text = "\n\n".join(message["content"] for message in messages[:count])
    return [{"role": "system", "content": text}, *messages[count:]]


def chat_tools(tools: list[Tool], *, strict: bool = False) -> list[dict[str, Any]]:
    """Tools in the Chat Completions form; a custom tool is a function with one text parameter.

    `strict`: keep the flag, for a server that may enforce a schema; a template would show it to the model.
    """
    return [{"type": "function", "function": _function(tool) | _strict(tool, strict)} for tool in tools]


def _strict(tool: Tool, keep: bool) -> dict[str, Any]:
    return {"strict": True} if keep and tool.get("strict") else {}


def _function(tool: Tool) -> dict[str, Any]:
    description = str(tool.get("description") or "")
    if tool["type"] == "function":
        parameters = tool.get("parameters") or {"type": "object", "properties": {}}
        return {"name": tool["name"], "description": description, "parameters": parameters}
    format = tool.get("format") or {}
    if format.get("type") == "grammar":
        description += f"\nThe input follows this {format.get('syntax')} grammar:\n{format.get('definition')}"
    parameters = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return {"name": tool["name"], "description": description, "parameters": parameters}


def open_message(conversation: Conversation) -> str | None:
    """The text of a last message that is to be continued rather than answered (status `in_progress`)."""
    last = conversation.last()
    if last is None or item_type(last) != "message" or last.get("role") != "assistant":
        return None
    return text_of(last) if last.get("status") == "in_progress" else None
