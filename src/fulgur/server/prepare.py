"""Turns a create request into a turn: checks it, joins it to its conversation, and begins its response object."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, field, replace
from typing import Any

from fulgur.backends.base import Conversation, Turn
from fulgur.backends.opaque import unseal
from fulgur.protocol.errors import invalid
from fulgur.protocol.ids import RESPONSE, new_id
from fulgur.protocol.items import Item, check_item, item_type, user_message
from fulgur.protocol.request import CreateRequest
from fulgur.protocol.response import Response
from fulgur.server import fields
from fulgur.server import tools as tool_list
from fulgur.server.content import check_calls, check_content, check_kinds
from fulgur.server.event_loop import off_loop
from fulgur.server.format import check_format, template_values
from fulgur.server.parse import at_least
from fulgur.server.registry import ServedModel, require
from fulgur.server.sampling import to_sampling

_MANY = 500  # items, tools and parts of contents; a request with more is checked on a thread
_MAX_SUMMARIES = 4 << 20  # characters of all compaction items: a small blob may unpack to a large text
# The entries for hosted tools and images have no effect: answers hold neither.
INCLUDABLE = frozenset(
    {
        "reasoning.encrypted_content",
        "message.output_text.logprobs",
        "message.input_image.image_url",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)


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
    ignored: list[str] = field(default_factory=list)  # fields that were ignored

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
    passed, ignored = fields.settle(request, entry)
    items = resolve(input_items(request.input), previous)
    compact = any(item.get("type") == "compaction_trigger" for item in items)
    items = [item for item in items if item.get("type") != "compaction_trigger"]
    conversation = previous.extend(items) if previous is not None else Conversation(items)
    conversation.own_size()  # computed and kept now: this may be a thread, later callers are not
    check_calls(conversation)
    offered, hosted = tool_list.sort([*(request.tools or []), *conversation.tools])
    upstream = "responses" in entry.backend.dialects
    if not upstream:
        # Codex, which sends this field, offers its hosted tools in every request, wanted or not.
        ignored += fields.ignored(tool_list.without(hosted, tolerated=request.client_metadata is not None))
        hosted = []
    choice = tool_list.check_choice(request.tool_choice, offered, hosted)
    choice, offered = tool_list.allowed(choice, offered, hosted)
    prewarm = request.prompt_cache_options is not None and request.prompt_cache_options.prewarm
    generate = request.generate is not False and not prewarm
    if generate and not compact and not conversation.length:
        raise invalid("'input' is missing or empty.", "input", "missing_required_parameter")
    if not upstream:
        ignored += fields.ignored(check_kinds(items))
    check_abilities(request, entry, items, offered if choice != "none" else [], generate)
    reasoning = request.reasoning
    turn = Turn(
        conversation,
        instructions=request.instructions,
        tools=offered,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        hosted=hosted,
        sampling=to_sampling(
            request, request.max_output_tokens, "max_output_tokens", top_logprobs=logprobs_wanted(request)
        ),
        format=check_format(request.text.format if request.text else None, "text.format"),
        reasoning_effort=reasoning.effort if reasoning else None,
        reasoning_summary=reasoning.summary if reasoning else None,
        verbosity=request.text.verbosity if request.text else None,
        service_tier=request.service_tier,
        cache_key=request.prompt_cache_key,
        template_values=template_values(request.chat_template_kwargs),
        passed=passed,
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
        ignored=ignored,
    )


async def prepare_off_loop(
    request: CreateRequest, entry: ServedModel, previous: Conversation | None, parent: str | None, *, websocket: bool
) -> Prepared:
    """`prepare`, on a thread when the request has many items, so that other streams go on."""
    work = functools.partial(prepare, request, entry, previous, parent, websocket=websocket)
    return await off_loop(work) if _many(request) else work()


def _many(request: CreateRequest) -> bool:
    if isinstance(request.input, str):
        return False
    parts = (item.get("content") for item in request.input[:_MANY])
    count = len(request.input) + len(request.tools or ())
    return count + sum(len(part) for part in parts if isinstance(part, list)) > _MANY


def check_values(request: CreateRequest, *, websocket: bool) -> None:
    at_least(request.max_tool_calls, 1, "max_tool_calls")
    for place, name in enumerate(request.include or []):
        if name not in INCLUDABLE:
            raise invalid(f"Invalid 'include[{place}]': '{name}'.", f"include[{place}]", "invalid_value")
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
    if request.text is not None and request.text.verbosity in ("low", "high"):
        check_verbosity(entry, "text.verbosity")
    for index, item in enumerate(items):
        field_name = "content" if "content" in item else "output"
        check_content(entry, item.get(field_name), f"input[{index}].{field_name}")


def check_verbosity(entry: ServedModel, path: str) -> None:
    """Refuse a verbosity for a local model, which has no such setting."""
    if entry.backend.kind == "local":
        raise invalid(f"The model '{entry.name}' has no verbosity setting.", path, "model_not_capable")


def logprobs_wanted(request: CreateRequest) -> int | None:
    if request.top_logprobs or "message.output_text.logprobs" in (request.include or []):
        return request.top_logprobs or 0
    return None


def resolve(items: list[Item], previous: Conversation | None) -> list[Item]:
    """Drop references to items that the conversation already holds; any other reference is a 400."""
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
