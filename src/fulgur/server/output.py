"""Turns the parts of an answer into output items: opens, fills and closes one at a time, and emits its events."""

from __future__ import annotations

from typing import Any

import msgspec

from fulgur.backends.opaque import seal
from fulgur.protocol.ids import CALL, CUSTOM_CALL, FUNCTION_CALL, MESSAGE, REASONING, derived_id
from fulgur.protocol.items import (
    CustomToolCall,
    FunctionCall,
    Item,
    OutputMessage,
    OutputText,
    Reasoning,
    Status,
    SummaryText,
    as_dict,
)
from fulgur.server.emitter import Emitter
from fulgur.text.parts import CallStart


class Output:
    """The output of one response while it grows. `kind` is that of the open item ("" when none is)."""

    def __init__(self, emitter: Emitter, response_id: str, *, seal_reasoning: bool) -> None:
        self.items: list[Item] = []
        self.kind = ""
        self.item_id = ""
        self._emitter = emitter
        self._response_id = response_id
        self._seal_reasoning = seal_reasoning
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._call: CallStart | None = None
        self._call_id = ""

    @property
    def index(self) -> int:
        return len(self.items)

    def text(self, text: str, logprobs: list[dict[str, Any]] | None = None) -> None:
        if self.kind != "message":
            self.close()
            self._open_message()
        self._pieces.append(text)
        if logprobs is None:
            self._emitter.delta(text)
        else:
            self._logprobs += logprobs
            self._emitter.emit("response.output_text.delta", **self._part(), delta=text, logprobs=logprobs)

    def reasoning(self, text: str) -> None:
        if self.kind != "reasoning":
            self.close()
            self._open_reasoning()
        self._pieces.append(text)
        self._emitter.delta(text)

    def call_start(self, call: CallStart) -> None:
        self.close()
        self.kind = "custom_tool_call" if call.custom else "function_call"
        self._call = call
        self._call_id = call.call_id or self._id(CALL)
        self.item_id = self._id(CUSTOM_CALL if call.custom else FUNCTION_CALL)
        self._emitter.emit("response.output_item.added", output_index=self.index, item=self._call_item("in_progress"))
        name = "custom_tool_call_input" if call.custom else "function_call_arguments"
        self._emitter.open(f"response.{name}.delta", item_id=self.item_id, output_index=self.index)

    def call_delta(self, text: str) -> None:
        self._pieces.append(text)
        self._emitter.delta(text)

    def close(self, status: Status = "completed") -> None:
        """End the open item, if there is one."""
        if not self.kind:
            return
        text = "".join(self._pieces)
        if self.kind == "message":
            item = self._close_message(text, status)
        elif self.kind == "reasoning":
            item = self._close_reasoning(text)
        else:
            item = self._close_call(text, status)
        self._emitter.emit("response.output_item.done", output_index=self.index, item=item)
        self.items.append(item)
        self._reset()

    def partial(self) -> Item | None:
        """The open message as it stands, to be continued later; None when no message is open."""
        if self.kind != "message":
            return None
        return as_dict(OutputMessage(self.item_id, [OutputText("".join(self._pieces))], "in_progress"))

    def discard(self) -> tuple[str, int] | None:
        """Forget the open item; its id and index, for the event that says so."""
        if not self.kind:
            return None
        dropped = self.item_id, self.index
        self._reset()
        return dropped

    def _id(self, prefix: str) -> str:
        """An id that is the same in every attempt at this response."""
        return derived_id(prefix, self._response_id, self.index)

    def _reset(self) -> None:
        self.kind = self.item_id = ""
        self._pieces, self._logprobs, self._call = [], [], None

    def _part(self) -> dict[str, Any]:
        return {"item_id": self.item_id, "output_index": self.index, "content_index": 0}

    def _open_message(self) -> None:
        self.kind, self.item_id = "message", self._id(MESSAGE)
        item = as_dict(OutputMessage(self.item_id, [], "in_progress"))
        self._emitter.emit("response.output_item.added", output_index=self.index, item=item)
        self._emitter.emit("response.content_part.added", **self._part(), part=as_dict(OutputText("")))
        self._emitter.open("response.output_text.delta", **self._part(), logprobs=[])

    def _close_message(self, text: str, status: Status) -> Item:
        part = OutputText(text, [], self._logprobs)
        self._emitter.emit("response.output_text.done", **self._part(), text=text, logprobs=self._logprobs)
        self._emitter.emit("response.content_part.done", **self._part(), part=as_dict(part))
        return as_dict(OutputMessage(self.item_id, [part], status))

    def _open_reasoning(self) -> None:
        self.kind, self.item_id = "reasoning", self._id(REASONING)
        item = as_dict(Reasoning(self.item_id))
        self._emitter.emit("response.output_item.added", output_index=self.index, item=item)
        place = {"item_id": self.item_id, "output_index": self.index, "summary_index": 0}
        self._emitter.emit("response.reasoning_summary_part.added", **place, part=as_dict(SummaryText("")))
        self._emitter.open("response.reasoning_summary_text.delta", **place)

    def _close_reasoning(self, text: str) -> Item:
        place = {"item_id": self.item_id, "output_index": self.index, "summary_index": 0}
        part = SummaryText(text)
        self._emitter.emit("response.reasoning_summary_text.done", **place, text=text)
        self._emitter.emit("response.reasoning_summary_part.done", **place, part=as_dict(part))
        sealed = seal({"reasoning": text}) if self._seal_reasoning else msgspec.UNSET
        return as_dict(Reasoning(self.item_id, [part], sealed))

    def _close_call(self, text: str, status: Status) -> Item:
        assert self._call is not None
        place = {"item_id": self.item_id, "output_index": self.index}
        if self._call.custom:
            self._emitter.emit("response.custom_tool_call_input.done", **place, input=text)
        else:
            self._emitter.emit("response.function_call_arguments.done", **place, name=self._call.name, arguments=text)
        return self._call_item(status, text)

    def _call_item(self, status: Status, text: str = "") -> Item:
        assert self._call is not None
        struct = CustomToolCall if self._call.custom else FunctionCall
        namespace = self._call.namespace or msgspec.UNSET
        return as_dict(struct(self.item_id, self._call_id, self._call.name, text, status, namespace))
