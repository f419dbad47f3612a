"""Turns chat messages into the items that every backend reads."""

from __future__ import annotations

from typing import Any

import msgspec

from fulgur.backends.base import Conversation, Turn
from fulgur.protocol.errors import invalid
from fulgur.protocol.items import Item
from fulgur.protocol.request import ChatMessage, ChatRequest, Prediction
from fulgur.server import fields
from fulgur.server import tools as tool_list
from fulgur.server.content import check_calls, check_part
from fulgur.server.format import chat_format, template_values
from fulgur.server.registry import ServedModel
from fulgur.server.sampling import to_sampling

GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")


def to_turn(body: ChatRequest, entry: ServedModel) -> tuple[Turn, list[str]]:
    """The turn, and the names of the fields that are ignored."""
    passed, ignored = fields.settle(body, entry)
    items: list[Item] = []
    for index, message in enumerate(body.messages):
        items += message_items(message, f"messages[{index}]", entry)
    if not items:
        raise invalid("The messages are empty: there is nothing to answer.", "messages", "invalid_value")
    conversation = Conversation(items)
    check_calls(conversation, "messages")
    offered, hosted = tool_list.sort([_tool(tool, index) for index, tool in enumerate(body.tools or [])])
    tool_list.without(hosted, tolerated=False)
    choice = body.tool_choice
    if isinstance(choice, dict):
        inner = choice.get(str(choice.get("type")))
        choice = {"type": choice.get("type"), **inner} if isinstance(inner, dict) else choice
    chosen, offered = tool_list.allowed(tool_list.check_choice(choice, offered, []), offered, [])
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    if "chat" in entry.backend.dialects:  # vLLM's own fields for a format go to the upstream, which knows them
        passed |= {name: value for name in GUIDED if (value := getattr(body, name)) is not None}
        body = msgspec.structs.replace(body, **dict.fromkeys(GUIDED))
    turn = Turn(
        conversation,
        tools=offered,
        tool_choice=chosen,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        sampling=to_sampling(
            body,
            getattr(body, limit),
            limit,
            top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        ),
        format=chat_format(body),
        reasoning_effort=body.reasoning_effort,
        verbosity=body.verbosity,
        prediction=_predicted(body.prediction),
        service_tier=body.service_tier,
        cache_key=body.prompt_cache_key,
        template_values=template_values(body.chat_template_kwargs),
        passed=passed,
    )
    if turn.format is not None and turn.format["type"] in ("regex", "lark") and entry.backend.kind == "upstream":
        raise invalid("This model's upstream does not support grammars.", "guided_grammar", "unsupported_parameter")
    return turn, ignored


def message_items(message: ChatMessage, path: str, entry: ServedModel) -> list[Item]:
    if message.role == "tool":
        if message.tool_call_id is None:
            raise invalid("A tool message needs 'tool_call_id'.", f"{path}.tool_call_id", "missing_required_parameter")
        if message.content is None:
            raise invalid("A tool message needs 'content'.", f"{path}.content", "missing_required_parameter")
        output = _parts(message.content, "input_text", path, entry)
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": output}]
    if message.content is None and message.role != "assistant":
        raise invalid(f"A {message.role} message needs 'content'.", f"{path}.content", "missing_required_parameter")
    kind = "output_text" if message.role == "assistant" else "input_text"
    items: list[Item] = []
    if message.content is not None and message.content != "":
        content = _parts(message.content, kind, path, entry)
        items.append({"type": "message", "role": message.role, "content": content})
    for place, call in enumerate(message.tool_calls or []):
        items.append(_call_item(call, f"{path}.tool_calls[{place}]"))
    return items


def _parts(
    content: str | list[dict[str, Any]] | None, kind: str, path: str, entry: ServedModel
) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[dict[str, Any]] = []
    for place, part in enumerate(content):
        check_part(entry, str(part.get("type")), f"{path}.content[{place}]")
        if part.get("type") in ("text", "refusal") and isinstance(part.get(part["type"]), str):
            parts.append({"type": kind, "text": part[part["type"]]})
        elif part.get("type") == "image_url" and isinstance(part.get("image_url"), dict):
            parts.append({"type": "input_image", "image_url": part["image_url"].get("url")})
        else:
            raise invalid("A content part must be text or image_url.", f"{path}.content[{place}]", "invalid_value")
    return parts


def _call_item(call: dict[str, Any], path: str) -> Item:
    kind = call.get("type", "function")
    inner = call.get(kind) if isinstance(kind, str) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not isinstance(call.get("id"), str):
        raise invalid("A tool call needs 'id', and 'function' with 'name' and 'arguments'.", path, "invalid_type")
    field = "input" if kind == "custom" else "arguments"
    text = inner.get(field, "")
    if not isinstance(text, str):
        raise invalid(f"'{field}' must be a string.", f"{path}.{kind}.{field}", "invalid_type")
    item_kind = "custom_tool_call" if kind == "custom" else "function_call"
    return {"type": item_kind, "call_id": call["id"], "name": inner["name"], field: text}


def _tool(tool: dict[str, Any], index: int) -> dict[str, Any]:
    kind = tool.get("type")
    inner = tool.get(str(kind))
    if kind in ("function", "custom") and not isinstance(inner, dict):
        raise invalid(f"The tool needs '{kind}'.", f"tools[{index}].{kind}", "missing_required_parameter")
    return {"type": kind, **inner} if isinstance(inner, dict) else tool


def _predicted(prediction: Prediction | None) -> str | None:
    if prediction is None:
        return None
    if isinstance(prediction.content, str):
        return prediction.content
    return "".join(str(part.get("text", "")) for part in prediction.content)
