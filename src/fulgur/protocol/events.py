"""Stream events, the same objects over SSE and WebSocket.

Order, for one response: `created`, `in_progress` (after `queued` when it waits), then for each output item
`output_item.added`, its parts and deltas, `output_item.done`; then exactly one of `completed`, `incomplete`, `failed`.
`sequence_number` counts from 0 within a response; steer events take the next number of the steered response.
`stream_id` is present only when the create named a lane.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fulgur.protocol.errors import ErrorBody
from fulgur.protocol.items import Item
from fulgur.protocol.response import Response

Unset = msgspec.UnsetType
UNSET = msgspec.UNSET


class Event(msgspec.Struct, kw_only=True, tag_field="type"):
    """What every event has."""

    sequence_number: int = 0
    stream_id: str | Unset = UNSET

    @property
    def type(self) -> str:
        return str(self.__struct_config__.tag)


class ResponseEvent(Event, kw_only=True):
    response: Response


class ResponseCreated(ResponseEvent, tag="response.created"):
    """`steers` (ours): the ids of the steers this response was opened for."""

    steers: list[str] | Unset = UNSET


class QueuePlace(msgspec.Struct, frozen=True):
    """A place in the queue (1 is next) and the expected wait, when known."""

    position: int
    expected_wait_seconds: float | None = None


class ResponseQueued(ResponseEvent, tag="response.queued"):
    """`queue` (ours): sent again whenever the place changes."""

    queue: QueuePlace | Unset = UNSET


class ResponseInProgress(ResponseEvent, tag="response.in_progress"):
    pass


class ResponseCompleted(ResponseEvent, tag="response.completed"):
    pass


class ResponseIncomplete(ResponseEvent, tag="response.incomplete"):
    pass


class ResponseFailed(ResponseEvent, tag="response.failed"):
    pass


class OutputItemAdded(Event, tag="response.output_item.added"):
    output_index: int
    item: Item


class OutputItemDone(Event, tag="response.output_item.done"):
    output_index: int
    item: Item


class PartEvent(Event, kw_only=True):
    item_id: str = ""
    output_index: int = 0
    content_index: int = 0


class ContentPartAdded(PartEvent, tag="response.content_part.added"):
    part: dict[str, Any]


class ContentPartDone(PartEvent, tag="response.content_part.done"):
    part: dict[str, Any]


class OutputTextDelta(PartEvent, tag="response.output_text.delta"):
    delta: str
    logprobs: list[dict[str, Any]] = []


class OutputTextDone(PartEvent, tag="response.output_text.done"):
    text: str
    logprobs: list[dict[str, Any]] = []


class RefusalDelta(PartEvent, tag="response.refusal.delta"):
    delta: str


class CallEvent(Event, kw_only=True):
    item_id: str = ""
    output_index: int = 0


class FunctionCallArgumentsDelta(CallEvent, tag="response.function_call_arguments.delta"):
    delta: str


class FunctionCallArgumentsDone(CallEvent, tag="response.function_call_arguments.done"):
    arguments: str
    name: str | Unset = UNSET


class CustomToolCallInputDelta(CallEvent, tag="response.custom_tool_call_input.delta"):
    delta: str


class CustomToolCallInputDone(CallEvent, tag="response.custom_tool_call_input.done"):
    input: str


class SummaryEvent(CallEvent, kw_only=True):
    summary_index: int = 0


class ReasoningSummaryPartAdded(SummaryEvent, tag="response.reasoning_summary_part.added"):
    part: dict[str, Any]


class ReasoningSummaryPartDone(SummaryEvent, tag="response.reasoning_summary_part.done"):
    part: dict[str, Any]


class ReasoningSummaryTextDelta(SummaryEvent, tag="response.reasoning_summary_text.delta"):
    delta: str


class ReasoningSummaryTextDone(SummaryEvent, tag="response.reasoning_summary_text.done"):
    text: str


class ReasoningTextDelta(PartEvent, tag="response.reasoning_text.delta"):
    """Other servers' raw thinking; ours comes as summary text."""

    delta: str


class Steer(msgspec.Struct, kw_only=True):
    previous_response_id: str
    id: str | Unset = UNSET
    input: Any = UNSET


class SteerAccepted(Event, tag="response.steer.accepted"):
    """Queued and owned by the server, not applied yet."""

    steer: Steer


class SteerPending(Event, tag="response.steer.pending"):
    """The steered response waits for tool outputs; the next create with them carries the steer along."""

    steer: Steer
    reason: str = "waiting_for_required_input"
    required_input: list[dict[str, Any]] = []


class SteerFailed(Event, tag="response.steer.failed"):
    steer: Steer
    error: ErrorBody


class InterruptAccepted(Event, tag="response.interrupt.accepted"):
    response_id: str


class OutputItemInterrupted(CallEvent, tag="response.output_item.interrupted"):
    response_id: str


class Prefilled(Event, tag="response.prefilled"):
    """Ours: the unfinished input of `response.prefill` is in the cache."""

    input_tokens: int
    cached_tokens: int = 0
    prefill_id: str | Unset = UNSET


class RateLimits(Event, tag="codex.rate_limits"):
    rate_limits: dict[str, Any]


class ErrorEvent(Event, tag="error"):
    """A request that failed before or outside a response; the socket and the other lanes live on."""

    error: ErrorBody
    status: int = 500


class UnknownEvent(Event, tag="unknown"):
    """An event this version does not know, whole."""

    name: str
    data: dict[str, Any]


TERMINAL = (ResponseCompleted, ResponseIncomplete, ResponseFailed)

KNOWN = (
    ResponseCreated | ResponseQueued | ResponseInProgress | ResponseCompleted | ResponseIncomplete | ResponseFailed
    | OutputItemAdded | OutputItemDone | ContentPartAdded | ContentPartDone | OutputTextDelta | OutputTextDone
    | RefusalDelta | FunctionCallArgumentsDelta | FunctionCallArgumentsDone | CustomToolCallInputDelta
    | CustomToolCallInputDone | ReasoningSummaryPartAdded | ReasoningSummaryPartDone | ReasoningSummaryTextDelta
    | ReasoningSummaryTextDone | ReasoningTextDelta | SteerAccepted | SteerPending | SteerFailed | InterruptAccepted
    | OutputItemInterrupted | Prefilled | RateLimits | ErrorEvent
)  # fmt: skip

_decoder = msgspec.json.Decoder(KNOWN)


def decode_event(data: bytes | str) -> Event:
    """Decode one event; an unknown one becomes an `UnknownEvent` that holds all of it."""
    try:
        event: Event = _decoder.decode(data)
        return event
    except msgspec.ValidationError:
        raw = msgspec.json.decode(data, type=dict[str, Any])
        stream_id = raw.get("stream_id", UNSET)
        return UnknownEvent(name=str(raw.get("type", "")), data=raw, stream_id=stream_id)
