"""Items: what a conversation is made of, as input and as output.

On the wire and in our own code items are plain dicts, because unknown kinds and fields must survive a round trip. The
structs below say which fields the known kinds have: `check_item` validates an input item against its struct, and the
output items are built from them with `as_dict`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fulgur.protocol.errors import ApiError, invalid

Item = dict[str, Any]
Role = Literal["user", "assistant", "system", "developer"]
Status = Literal["in_progress", "completed", "incomplete"]


class Part(msgspec.Struct, omit_defaults=True):
    """One part of a message's content; which fields matter depends on `type`."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | dict[str, Any] | None = None
    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


class InputMessage(msgspec.Struct):
    role: Role
    content: str | list[Part]
    id: str | None = None
    status: Status | None = None
    phase: str | None = None


class InputFunctionCall(msgspec.Struct):
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    namespace: str | None = None


class InputCustomToolCall(msgspec.Struct):
    call_id: str
    name: str
    input: str
    id: str | None = None


class InputToolOutput(msgspec.Struct):
    """`function_call_output` and `custom_tool_call_output`."""

    call_id: str
    output: str | list[Part]
    id: str | None = None


class InputReasoning(msgspec.Struct):
    summary: list[Part] = []
    content: list[Part] | None = None
    encrypted_content: str | None = None
    id: str | None = None


class InputCompaction(msgspec.Struct):
    encrypted_content: str
    id: str | None = None


class InputReference(msgspec.Struct):
    id: str


class InputAdditionalTools(msgspec.Struct):
    tools: list[dict[str, Any]]
    role: Role | None = None


class RecentEdit(msgspec.Struct):
    before: str
    after: str


class InputEdit(msgspec.Struct):
    """Ours: a region of a file to be rewritten as the instruction says, for models that edit and do not chat.

    Without an instruction it asks for the edit that follows from the `recent` ones. `above` and `below` are cut to fit.
    """

    path: str
    region: str
    above: str = ""
    below: str = ""
    instruction: str | None = None
    recent: list[RecentEdit] = []


INPUT_TYPES: dict[str, type[msgspec.Struct]] = {
    "message": InputMessage,
    "function_call": InputFunctionCall,
    "function_call_output": InputToolOutput,
    "custom_tool_call": InputCustomToolCall,
    "custom_tool_call_output": InputToolOutput,
    "reasoning": InputReasoning,
    "compaction": InputCompaction,
    "item_reference": InputReference,
    "additional_tools": InputAdditionalTools,
    "edit": InputEdit,
}


def item_type(item: Item) -> str:
    """The kind of an input item; messages and references may leave it out."""
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    if kind is None and "role" in item:
        return "message"
    if kind is None and "id" in item:
        return "item_reference"
    raise invalid("An input item needs a 'type'.", "input.type")


def check_item(item: Item, path: str) -> None:
    """Validate an input item against its kind; unknown kinds pass. Raises a 400 that names the field."""
    try:
        kind = item_type(item)
    except ApiError as error:
        raise invalid(error.message, f"{path}.type") from None
    struct = INPUT_TYPES.get(kind)
    if struct is None:
        return
    try:
        msgspec.convert(item, struct)
    except msgspec.ValidationError as error:
        message, field = split_validation_error(error)
        raise invalid(f"Invalid '{path}{field}': {message}.", f"{path}{field}") from None


def split_validation_error(error: msgspec.ValidationError) -> tuple[str, str]:
    """`Expected `str`, got `int` - at `$.a[0].b`` → (`Expected `str`, got `int``, `.a[0].b`)."""
    message, _, where = str(error).partition(" - at `$")
    field = where.rstrip("`")
    if "missing required field" in message:
        field = f"{field}.{message.rpartition('field `')[2].rstrip('`')}"
    return message.replace("Object missing", "missing"), field


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[dict[str, Any]] = []


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    content: list[OutputText] = []
    status: Status = "completed"
    role: str = "assistant"


class FunctionCall(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status = "completed"
    namespace: str | msgspec.UnsetType = msgspec.UNSET


class CustomToolCall(msgspec.Struct, tag_field="type", tag="custom_tool_call"):
    id: str
    call_id: str
    name: str
    input: str
    status: Status = "completed"
    namespace: str | msgspec.UnsetType = msgspec.UNSET


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text"):
    text: str


class Reasoning(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    summary: list[SummaryText] = []
    encrypted_content: str | msgspec.UnsetType = msgspec.UNSET
    status: Status | msgspec.UnsetType = msgspec.UNSET


class Compaction(msgspec.Struct, tag_field="type", tag="compaction"):
    id: str
    encrypted_content: str
    status: Status = "completed"


OutputItem = OutputMessage | FunctionCall | CustomToolCall | Reasoning | Compaction


def as_dict(item: OutputItem | OutputText | SummaryText) -> Item:
    """A built item as the dict that is stored, sent and replayed."""
    result: Item = msgspec.to_builtins(item)
    return result


def user_message(text: str) -> Item:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def text_of(item: Item) -> str:
    """The plain text of a message item, an output or a reasoning summary ("" where there is none)."""
    content = item.get("content", item.get("output", item.get("summary")))
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in content or [])


# The tool calls that the client must answer, and the item that answers each.
CLIENT_CALLS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
