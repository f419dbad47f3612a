"""Chat messages to the items every backend reads."""

from __future__ import annotations

from typing import Any

from fulgur.backends.base import Conversation, Sampling, Turn
from fulgur.protocol.errors import invalid
from fulgur.protocol.items import Item
from fulgur.protocol.request import ChatMessage, ChatRequest, Prediction
from fulgur.server import tools as tool_list
from fulgur.server.prepare import check_format


def to_turn(body: ChatRequest) -> Turn:
    items: list[Item] = []
    for index, message in enumerate(body.messages):
        items += message_items(message, f"messages[{index}]")
    if not items:
        raise invalid("The messages are empty: there is nothing to answer.", "messages", "invalid_value")
    offered = tool_list.flatten([_tool(tool, index) for index, tool in enumerate(body.tools or [])])
    choice = body.tool_choice
    if isinstance(choice, dict):
        inner = choice.get(str(choice.get("type")))
        choice = {"type": choice.get("type"), **inner} if isinstance(inner, dict) else choice
    chosen, offered = tool_list.allowed(tool_list.check_choice(choice, offered), offered)
    return Turn(
        Conversation(items),
        tools=offered,
        tool_choice=chosen,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        sampling=Sampling(
            max_tokens=body.max_completion_tokens or body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            seed=body.seed,
            stop=stops(body.stop),
        ),
        format=_format(body.response_format),
        reasoning_effort=body.reasoning_effort,
        prediction=_predicted(body.prediction),
    )


def stops(stop: str | list[str] | None) -> list[str]:
    return [] if stop is None else [stop] if isinstance(stop, str) else stop


def message_items(message: ChatMessage, path: str) -> list[Item]:
    if message.role == "tool":
        if message.tool_call_id is None:
            raise invalid("A tool message needs 'tool_call_id'.", f"{path}.tool_call_id", "missing_required_parameter")
        if message.content is None:
            raise invalid("A tool message needs 'content'.", f"{path}.content", "missing_required_parameter")
        output = _parts(message.content, "input_text", path)
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": output}]
    if message.content is None and message.role != "assistant":
        raise invalid(f"A {message.role} message needs 'content'.", f"{path}.content", "missing_required_parameter")
    kind = "output_text" if message.role == "assistant" else "input_text"
    items: list[Item] = []
    if message.content is not None and message.content != "":
        content = _parts(message.content, kind, path)
        items.append({"type": "message", "role": message.role, "content": content})
    for place, call in enumerate(message.tool_calls or []):
        items.append(_call_item(call, f"{path}.tool_calls[{place}]"))
    return items


def _parts(content: str | list[dict[str, Any]] | None, kind: str, path: str) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[dict[str, Any]] = []
    for place, part in enumerate(content):
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


def _format(response_format: dict[str, Any] | None) -> dict[str, Any] | None:
    if response_format is None:
        return None
    schema = response_format.get("json_schema")
    if response_format.get("type") == "json_schema" and isinstance(schema, dict):
        response_format = {"type": "json_schema", **schema}
    return check_format(response_format, "response_format")


def _predicted(prediction: Prediction | None) -> str | None:
    if prediction is None:
        return None
    if isinstance(prediction.content, str):
        return prediction.content
    return "".join(str(part.get("text", "")) for part in prediction.content)
