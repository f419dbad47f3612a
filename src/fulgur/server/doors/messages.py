"""Anthropic's Messages API: `POST /v1/messages`, streamed or not, with tools; `POST /v1/messages/count_tokens`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from aiohttp import web

from fulgur.backends.base import Conversation, Turn
from fulgur.protocol.errors import ApiError, invalid
from fulgur.protocol.ids import MESSAGE, new_id
from fulgur.protocol.items import Item
from fulgur.protocol.request import Body, Effort, SamplingFields, Tier
from fulgur.server import fields
from fulgur.server import tools as tool_list
from fulgur.server.answers import ERROR_SHAPES, IGNORED, json_answer, owner_of, read_request, server_of
from fulgur.server.content import check_calls, check_part
from fulgur.server.doors.answer import Answer, collect, counted, encode, stream
from fulgur.server.format import Format, check_format
from fulgur.server.pools import DEFAULT
from fulgur.server.registry import ServedModel, require
from fulgur.server.sampling import to_sampling
from fulgur.text.parts import (
    Begin,
    CallDelta,
    CallEnd,
    CallStart,
    Finish,
    Malformed,
    Part,
    ReasoningDelta,
    TextDelta,
    Usage,
)

Block = dict[str, Any]
STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class Message(msgspec.Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Thinking(msgspec.Struct, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None  # ignored: nothing here can enforce it
    display: str | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: Effort | None = None
    format: dict[str, Any] | None = None


class MessagesRequest(Body, kw_only=True):
    model: str
    messages: list[Message]
    max_tokens: int | None = None  # required where something is generated
    system: str | list[Block] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool = False
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    service_tier: Tier | Literal["standard_only"] | None = None  # Anthropic's names, and ours


DOOR = fields.Door(
    "messages",
    frozenset({"metadata", "cache_control", "anthropic_version", "betas", "inference_geo"}),
    {"mcp_servers": "send their tools in 'tools'", "container": "this server runs no code"},
    {},
)


async def create(request: web.Request) -> web.StreamResponse:
    server = server_of(request)
    body = await read_request(request, MessagesRequest)
    entry = server.models.get(body.model)
    backend = await entry.ready()
    if body.max_tokens is None:
        raise invalid("'max_tokens' is missing.", "max_tokens", "missing_required_parameter")
    turn, request[IGNORED] = to_turn(body, entry)
    async with counted(request, entry, body.service_tier) as total:
        turn.owner = server.cache_owner(owner_of(request))
        generation = backend.generate(turn)
        if body.stream:
            return await stream(request, [generation], MessagesWriter(body.model, total.tier), total)
        whole = await collect(generation)
        total.add(whole.finish.usage)
        message = _message(body.model, _content(whole), whole.finish, total.usage, total.tier)
        return json_answer(message)


async def count(request: web.Request) -> web.Response:
    server = server_of(request)
    body = await read_request(request, MessagesRequest)
    entry = server.models.get(body.model)
    backend = await entry.ready()
    turn, request[IGNORED] = to_turn(body, entry)
    return json_answer({"input_tokens": await backend.count(turn)})


def to_turn(body: MessagesRequest, entry: ServedModel) -> tuple[Turn, list[str]]:
    """The turn, and the names of the fields that are ignored."""
    require(entry, "chat", "chat")
    _, ignored = fields.settle(body, entry, DOOR)
    items: list[Item] = []
    for index, message in enumerate(body.messages):
        items += message_items(message, f"messages[{index}]", entry)
    if not items:
        raise invalid("'messages' is empty.", "messages", "invalid_value")
    if items[-1].get("role") == "assistant":  # the beginning of the answer, which Anthropic's models continue
        items[-1]["status"] = "in_progress"
    conversation = Conversation(items)
    check_calls(conversation, "messages")
    offered, hosted = tool_list.sort([_tool(tool) for tool in body.tools or []])
    tool_list.without(hosted, tolerated=False)
    choice, parallel = _choice(body.tool_choice)
    chosen = tool_list.check_choice(choice, offered, hosted)
    sampling = SamplingFields(
        temperature=body.temperature, top_p=body.top_p, top_k=body.top_k, stop=body.stop_sequences
    )
    effort = body.output_config.effort if body.output_config is not None else None
    if body.thinking is not None:
        effort = "none" if body.thinking.type == "disabled" else effort
        ignored += fields.ignored(["thinking.budget_tokens"] if body.thinking.budget_tokens is not None else [])
    turn = Turn(
        conversation,
        instructions=_system(body.system),
        tools=offered,
        tool_choice=chosen,
        parallel_tool_calls=parallel,
        sampling=to_sampling(sampling, body.max_tokens, "max_tokens"),
        format=_format(body),
        reasoning_effort=effort,
    )
    return turn, ignored


def message_items(message: Message, path: str, entry: ServedModel) -> list[Item]:
    """The items of a message: its text, its images, the calls it makes, the outputs it brings."""
    kind = "output_text" if message.role == "assistant" else "input_text"
    blocks = [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content
    items: list[Item] = []
    parts: list[Block] = []

    def flush() -> None:
        if parts:
            items.append({"type": "message", "role": message.role, "content": parts.copy()})
            parts.clear()

    for place, block in enumerate(blocks):
        where = f"{path}.content[{place}]"
        match block.get("type"):
            case "text" if isinstance(block.get("text"), str):
                if block["text"]:
                    parts.append({"type": kind, "text": block["text"]})
            case "image":
                parts.append(_image(block, where, entry))
            case "tool_use":
                flush()
                arguments = encode(_field(block, "input", dict, where)).decode()
                name, call_id = _field(block, "name", str, where), _field(block, "id", str, where)
                items.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments})
            case "tool_result":
                flush()
                output = _output(block.get("content"), where, entry)
                call_id = _field(block, "tool_use_id", str, where)
                items.append({"type": "function_call_output", "call_id": call_id, "output": output})
            case "thinking":
                flush()
                summary = [{"type": "summary_text", "text": str(block.get("thinking") or "")}]
                items.append({"type": "reasoning", "summary": summary})
            case "redacted_thinking":
                flush()  # encrypted: it cannot be read here
            case other:
                raise invalid(f"Content blocks of type '{other}' are not supported.", where, "unsupported_content")
    flush()
    return items


class MessagesWriter:
    """Parts as Anthropic's events: one block at a time, opened and closed."""

    content_type = "text/event-stream"

    def __init__(self, model: str, tier: str) -> None:
        self._model = model
        self._tier = tier
        self._block = -1
        self._kind = ""
        self._ending = _ending(None)

    def part(self, index: int, part: Part) -> bytes | None:
        if isinstance(part, TextDelta):
            opened = self._open("text", {"type": "text", "text": ""})
            return opened + self._delta(b'{"type":"text_delta","text":%b}' % encode(part.text))
        if isinstance(part, CallDelta):
            return self._delta(b'{"type":"input_json_delta","partial_json":%b}' % encode(part.text))
        if isinstance(part, ReasoningDelta):
            opened = self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            return opened + self._delta(b'{"type":"thinking_delta","thinking":%b}' % encode(part.text))
        if isinstance(part, CallStart):
            return self._close() + self._open("tool_use", _tool_use(part, {}))
        if isinstance(part, CallEnd | Malformed):
            return self._close()
        if isinstance(part, Begin):
            usage = Usage(input_tokens=part.input_tokens, cached_tokens=part.cached_tokens)
            return _event("message_start", message=_message(self._model, [], None, usage, self._tier))
        if isinstance(part, Finish):
            self._ending = _ending(part)
            return self._close()
        return None

    def end(self, usage: Usage) -> bytes:
        return _event("message_delta", delta=self._ending, usage=_usage(usage, self._tier)) + _event("message_stop")

    def failed(self, error: ApiError) -> bytes:
        return b"event: error\ndata: %b\n\n" % encode(error_object(error))

    def _open(self, kind: str, block: Block) -> bytes:
        if self._kind == kind:
            return b""
        closed = self._close()
        self._kind = kind
        self._block += 1
        return closed + _event("content_block_start", index=self._block, content_block=block)

    def _delta(self, delta: bytes) -> bytes:
        return b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":%b}\n\n' % (
            self._block,
            delta,
        )

    def _close(self) -> bytes:
        if not self._kind:
            return b""
        self._kind = ""
        return _event("content_block_stop", index=self._block)


def error_object(error: ApiError) -> dict[str, Any]:
    """An error in the form that Anthropic's clients expect."""
    kind = ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


ERROR_SHAPES["/v1/messages"] = ERROR_SHAPES["/messages"] = error_object


def _message(model: str, content: list[Block], finish: Finish | None, usage: Usage, tier: str) -> dict[str, Any]:
    return {
        "id": new_id(MESSAGE),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **_ending(finish),
        "usage": _usage(usage, tier),
    }


def _ending(finish: Finish | None) -> dict[str, str | None]:
    """Why an answer ended; None while it has not."""
    if finish is None:
        return {"stop_reason": None, "stop_sequence": None}
    ended = "stop_sequence" if finish.stop else "end_turn"
    return {"stop_reason": STOP_REASONS.get(finish.reason, ended), "stop_sequence": finish.stop or None}


def _content(answer: Answer) -> list[Block]:
    blocks: list[Block] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    for start, text in answer.calls:
        try:
            arguments = msgspec.json.decode(text or "{}")
        except msgspec.DecodeError:
            arguments = {"input": text}
        blocks.append(_tool_use(start, arguments if isinstance(arguments, dict) else {"input": arguments}))
    return blocks


def _tool_use(start: CallStart, arguments: dict[str, Any]) -> Block:
    return {"type": "tool_use", "id": start.call_id or new_id("toolu"), "name": start.name, "input": arguments}


def _usage(usage: Usage, tier: str) -> dict[str, Any]:
    """Anthropic counts cached tokens separately, not as part of the input."""
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "service_tier": "standard" if tier == DEFAULT else tier,
    }


def _event(kind: str, **values: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({"type": kind, **values}))


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        return tool  # Anthropic's own: hosted
    if not isinstance(tool.get("input_schema", {}), dict):
        raise invalid("'input_schema' must be a JSON schema.", "tools", "invalid_type")
    return {
        "type": "function",
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
        "strict": tool.get("strict"),
    }


def _choice(choice: dict[str, Any] | None) -> tuple[str | dict[str, Any] | None, bool]:
    if choice is None:
        return None, True
    kind = choice.get("type")
    parallel = not choice.get("disable_parallel_tool_use")
    if kind == "tool":
        return {"type": "function", "name": choice.get("name")}, parallel
    known = {"auto": "auto", "any": "required", "none": "none"}
    if not isinstance(kind, str) or kind not in known:
        raise invalid(f"Invalid 'tool_choice.type': '{kind}'.", "tool_choice.type", "invalid_value")
    return known[kind], parallel


def _system(system: str | list[Block] | None) -> str | None:
    if isinstance(system, list):
        for index, block in enumerate(system):
            if block.get("type") != "text" or not isinstance(block.get("text"), str):
                raise invalid("A block of 'system' must be text.", f"system[{index}]", "unsupported_content")
        return "\n\n".join(block["text"] for block in system) or None
    return system or None


def _format(body: MessagesRequest) -> Format | None:
    wanted = body.output_format or (body.output_config.format if body.output_config is not None else None)
    return check_format({"name": "answer", **wanted}, "output_format") if wanted else None


def _image(block: Block, path: str, entry: ServedModel) -> Block:
    check_part(entry, "input_image", path)
    source = _field(block, "source", dict, path)
    url = source.get("url")
    if source.get("type") == "base64":
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
    return {"type": "input_image", "image_url": url}


def _output(content: Any, path: str, entry: ServedModel) -> str | list[Block]:
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[Block] = []
    for place, block in enumerate(content if isinstance(content, list) else [content]):
        where = f"{path}.content[{place}]"
        if isinstance(block, dict) and block.get("type") == "text":
            parts.append({"type": "input_text", "text": str(block.get("text") or "")})
        elif isinstance(block, dict) and block.get("type") == "image":
            parts.append(_image(block, where, entry))
        else:
            raise invalid("A tool's result must be text or images.", where, "unsupported_content")
    return parts


def _field(block: Block, name: str, kind: type, path: str) -> Any:
    if not isinstance(block.get(name), kind):
        raise invalid(f"'{path}.{name}' is missing or has the wrong type.", f"{path}.{name}", "invalid_type")
    return block[name]
