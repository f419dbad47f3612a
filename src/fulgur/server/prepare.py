"""A create request to a turn: checked, its conversation found, its response object begun."""

from __future__ import annotations

import asyncio
import functools
import time
from dataclasses import dataclass, replace
from typing import Any

from fulgur.backends.base import Conversation, Sampling, Turn
from fulgur.backends.opaque import unseal
from fulgur.protocol.errors import invalid
from fulgur.protocol.ids import RESPONSE, new_id
from fulgur.protocol.items import Item, check_item, item_type, user_message
from fulgur.protocol.request import CreateRequest
from fulgur.protocol.response import Response
from fulgur.server import tools as tool_list
from fulgur.server.parse import at_least, in_range
from fulgur.server.registry import ServedModel, require

_MANY = 500  # items, tools and parts of contents: more are looked at on a thread
_MAX_SUMMARIES = 4 << 20  # characters of all compaction items: a small blob may unpack to a large text


@dataclass
class Prepared:
    """Everything a run needs."""

    entry: ServedModel
    turn: Turn
    response: Response
    input: list[Item]  # what this request added
    parent: str | None  # the stored response it comes after
    store: bool
    generate: bool
    seal_reasoning: bool = False
    compact: bool = False  # the input asks for a compaction item instead of an answer

    def successor(self, conversation: Conversation, input: list[Item]) -> Prepared:
        """The same settings for what follows a steer."""
        response = begin(self.response, previous=self.response.id)
        parent = self.response.id if self.store else None
        turn = replace(self.turn, conversation=conversation)
        return replace(self, turn=turn, response=response, input=input, parent=parent)


def begin(like: Response, previous: str | None) -> Response:
    """A fresh response with the settings of another."""
    return Response(
        **{
            name: getattr(like, name)
            for name in like.__struct_fields__
            if name
            not in ("id", "created_at", "completed_at", "status", "incomplete_details", "output", "error", "usage")
        }
        | {"id": new_id(RESPONSE), "created_at": int(time.time()), "previous_response_id": previous}
    )


def input_items(given: str | list[Item], path: str = "input") -> list[Item]:
    """The input as checked items."""
    if isinstance(given, str):
        return [user_message(given)] if given else []
    unpacked = 0
    for index, item in enumerate(given):
        check_item(item, f"{path}[{index}]")
        if item_type(item) == "compaction":
            field = f"{path}[{index}].encrypted_content"
            unpacked += len(str(unseal(item["encrypted_content"], field).get("summary")))
            if unpacked > _MAX_SUMMARIES:
                raise invalid("The compacted conversations are too large.", field, "invalid_value")
    return given


def prepare(
    request: CreateRequest, entry: ServedModel, previous: Conversation | None, parent: str | None, *, websocket: bool
) -> Prepared:
    """Check the request against the model and build its turn. `previous` is the conversation it continues."""
    check_values(request, websocket=websocket)
    items = resolve(input_items(request.input), previous)
    compact = any(item.get("type") == "compaction_trigger" for item in items)
    items = [item for item in items if item.get("type") != "compaction_trigger"]
    conversation = previous.extend(items) if previous is not None else Conversation(items)
    conversation.own_size()  # looked at here: this may be a thread, what asks for it later is not
    offered = tool_list.flatten([*(request.tools or []), *conversation.tools])
    choice, offered = tool_list.allowed(tool_list.check_choice(request.tool_choice, offered), offered)
    prewarm = request.prompt_cache_options is not None and request.prompt_cache_options.prewarm
    generate = request.generate is not False and not prewarm
    if generate and not compact and not conversation.length:
        raise invalid("'input' is missing or empty.", "input", "missing_required_parameter")
    check_abilities(request, entry, items, offered if choice != "none" else [], generate)
    reasoning = request.reasoning
    turn = Turn(
        conversation,
        instructions=request.instructions,
        tools=offered,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        sampling=Sampling(
            max_tokens=request.max_output_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_logprobs=logprobs_wanted(request),
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
        ),
        format=check_format(request.text.format if request.text else None, "text.format"),
        reasoning_effort=reasoning.effort if reasoning else None,
        reasoning_summary=reasoning.summary if reasoning else None,
        verbosity=request.text.verbosity if request.text else None,
        service_tier=request.service_tier,
        cache_key=request.prompt_cache_key,
    )
    store = request.store is not False
    return Prepared(
        entry=entry,
        turn=turn,
        response=skeleton(request, turn, entry.backend.default_temperature),
        input=items,
        parent=parent,
        store=store,
        generate=generate,
        seal_reasoning="reasoning.encrypted_content" in (request.include or []),
        compact=compact,
    )


async def prepare_off_loop(
    request: CreateRequest, entry: ServedModel, previous: Conversation | None, parent: str | None, *, websocket: bool
) -> Prepared:
    """`prepare`; a request of many items on a thread, so that other streams go on."""
    work = functools.partial(prepare, request, entry, previous, parent, websocket=websocket)
    return await asyncio.to_thread(work) if _many(request) else work()


def _many(request: CreateRequest) -> bool:
    if isinstance(request.input, str):
        return False
    parts = (item.get("content") for item in request.input[:_MANY])
    count = len(request.input) + len(request.tools or ())
    return count + sum(len(part) for part in parts if isinstance(part, list)) > _MANY


def check_values(request: CreateRequest, *, websocket: bool) -> None:
    in_range(request.temperature, 0, 2, "temperature")
    in_range(request.top_p, 0, 1, "top_p")
    in_range(request.top_logprobs, 0, 20, "top_logprobs")
    in_range(request.presence_penalty, -2, 2, "presence_penalty")
    in_range(request.frequency_penalty, -2, 2, "frequency_penalty")
    at_least(request.max_output_tokens, 1, "max_output_tokens")
    at_least(request.max_tool_calls, 1, "max_tool_calls")
    if request.conversation is not None:
        raise invalid(
            "'conversation' is not offered by this server; continue with 'previous_response_id'.",
            "conversation",
            "unsupported_parameter",
        )
    if request.context_management:
        raise invalid(
            "'context_management' is not offered by this server; call /v1/responses/compact.",
            "context_management",
            "unsupported_parameter",
        )
    if request.truncation == "auto":
        raise invalid(
            "'truncation: auto' is not offered: nothing is dropped silently. Use /v1/responses/compact.",
            "truncation",
            "unsupported_parameter",
        )
    if request.background and websocket:
        raise invalid("'background' cannot be used over a WebSocket.", "background", "unsupported_parameter")
    if request.background and request.store is False:
        raise invalid("'background' needs 'store'.", "background", "invalid_value")
    if len(request.metadata or {}) > 16:
        raise invalid("'metadata' holds at most 16 pairs.", "metadata", "invalid_value")


def check_abilities(
    request: CreateRequest, entry: ServedModel, items: list[Item], tools: list[dict[str, Any]], generate: bool
) -> None:
    if any(item.get("type") == "edit" for item in items):
        require(entry, "edit", "rewrite a region of code")
    elif generate or items:
        require(entry, "chat", "chat")
    if request.tool_choice not in (None, "auto", "none") and tools:
        require(entry, "tools", "call tools")
    if logprobs_wanted(request) is not None:
        require(entry, "logprobs", "give log-probabilities")
    for index, item in enumerate(items):
        parts = item.get("content")
        for place, part in enumerate(parts if isinstance(parts, list) else []):
            image = part.get("type") == "input_image"
            if part.get("type") == "input_file" or (image and not entry.backend.capabilities.vision):
                what = "see images" if image else "read files given as input_file"
                raise invalid(
                    f"The model '{entry.name}' cannot {what}.",
                    f"input[{index}].content[{place}]",
                    "model_not_capable",
                )


def logprobs_wanted(request: CreateRequest) -> int | None:
    if request.top_logprobs or "message.output_text.logprobs" in (request.include or []):
        return request.top_logprobs or 0
    return None


def check_format(format: dict[str, Any] | None, path: str) -> dict[str, Any] | None:
    """text.format (or response_format) as backends read it; None for plain text."""
    if format is None or format.get("type") == "text":
        return None
    kind = format.get("type")
    if kind == "json_object":
        return format
    if kind != "json_schema":
        raise invalid(f"Invalid '{path}.type': '{kind}'.", f"{path}.type", "invalid_value")
    if not isinstance(format.get("schema"), dict):
        raise invalid(f"'{path}.schema' must be a JSON schema.", f"{path}.schema", "invalid_type")
    return format


def resolve(items: list[Item], previous: Conversation | None) -> list[Item]:
    """Replace references by the items of this conversation they point to."""
    if not any(item_type(item) == "item_reference" for item in items):
        return items
    known = {str(item.get("id")) for item in (previous.all() if previous else [])}
    resolved: list[Item] = []
    for index, item in enumerate(items):
        if item_type(item) != "item_reference":
            resolved.append(item)
        elif item["id"] in known:
            continue  # it is part of the conversation already
        else:
            raise invalid(f"Item with id '{item['id']}' not found.", f"input[{index}].id", "item_not_found")
    return resolved


def skeleton(request: CreateRequest, turn: Turn, default_temperature: float) -> Response:
    """The response object before anything was generated."""
    text: dict[str, Any] = {"format": turn.format or {"type": "text"}}
    if turn.verbosity is not None:
        text["verbosity"] = turn.verbosity
    return Response(
        id=new_id(RESPONSE),
        created_at=int(time.time()),
        model=request.model,
        previous_response_id=request.previous_response_id,
        instructions=request.instructions,
        tools=tool_list.echo(request.tools or []),
        tool_choice=request.tool_choice if request.tool_choice is not None else "auto",
        parallel_tool_calls=turn.parallel_tool_calls,
        text=text,
        top_p=1.0 if request.top_p is None else request.top_p,
        temperature=default_temperature if request.temperature is None else request.temperature,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        top_logprobs=request.top_logprobs or 0,
        reasoning={"effort": turn.reasoning_effort, "summary": turn.reasoning_summary},
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        store=request.store is not False,
        background=bool(request.background),
        metadata=request.metadata or {},
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
    )
