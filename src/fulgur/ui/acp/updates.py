"""Agent events as editors show them: each becomes one `session/update`, or none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from fulgur.protocol import agent as events
from fulgur.protocol.agent import AgentEvent, PlanStep
from fulgur.protocol.session import TranscriptEntry
from fulgur.ui.foreign import shown

Update = dict[str, Any]
_MOST_OUTPUT = 64 << 10  # of one call, in one update


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def said(text: str, kind: str = "agent_message_chunk") -> Update:
    return {"sessionUpdate": kind, "content": text_block(text)}


def plan(steps: Iterable[PlanStep]) -> Update:
    entries = [{"content": step.step, "priority": "medium", "status": step.status} for step in steps]
    return {"sessionUpdate": "plan", "entries": entries}


class Updates:
    """Remembers what updates need of earlier events: protocol v1 replaces a call's content as a whole."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._outputs: dict[str, str] = {}
        self._diffs: dict[str, list[dict[str, Any]]] = {}
        self._spoken = False

    def of(self, event: AgentEvent) -> Iterator[Update]:
        """The updates to send to the editor for an event."""
        match event:
            case events.TurnStarted():
                self._outputs.clear()
                self._diffs.clear()
                self._spoken = False
            case events.MessageDelta():
                self._spoken = True
                yield said(event.text)
            case events.ThinkingDelta():
                yield said(event.text, "agent_thought_chunk")
            case events.ToolStarted():
                yield {
                    "sessionUpdate": "tool_call",
                    "toolCallId": event.call_id,
                    "title": shown(event.title),
                    "kind": event.kind,
                    "status": "in_progress",
                    "locations": [self._location(place) for place in event.places],
                    **({"rawInput": event.arguments} if event.arguments else {}),
                }
            case events.ToolOutput():
                text = (self._outputs.get(event.call_id, "") + event.text)[-_MOST_OUTPUT:]
                self._outputs[event.call_id] = text
                yield self._progress(event.call_id)
            case events.FileChanged() if event.new is not None or event.old is not None:
                diff = {
                    "type": "diff",
                    "path": self._path(event.path),
                    "oldText": event.old,
                    "newText": event.new or "",
                }
                call = event.call_id or f"change-{event.turn}-{event.path}"
                self._diffs.setdefault(call, []).append(diff)
                if event.call_id:
                    yield self._progress(call)
                else:
                    yield {
                        "sessionUpdate": "tool_call",
                        "toolCallId": call,
                        "title": f"{event.kind} {shown(event.path)}",
                        "kind": "edit",
                        "status": "completed",
                        "content": [diff],
                        "locations": [{"path": self._path(event.path)}],
                    }
            case events.ToolFinished():
                if event.call_id not in self._diffs:
                    self._outputs[event.call_id] = event.output[-_MOST_OUTPUT:]
                yield {**self._progress(event.call_id), "status": "completed" if event.ok else "failed"}
            case events.PlanChanged():
                yield plan(event.steps)
            case events.GuardReported() if event.problems:
                self._spoken = True
                yield said(f"\n\n{event.check}: {'; '.join(event.problems)}\n\n")
            case events.GuardReported() if event.unchecked:
                yield said(f"{event.unchecked}\n", "agent_thought_chunk")
            case events.Warned() if not event.quiet:
                yield said(f"{event.message}{f' ({event.hint})' if event.hint else ''}\n", "agent_thought_chunk")
            case events.UsageReported():
                yield _usage(event)
            case events.TurnDone() if not self._spoken:
                yield said(event.text or "Done.")  # some editors keep waiting after a turn without any text
            case events.Undone() | events.Judged():
                yield said(f"\n{', '.join(event.paths)}: {_what(event)}\n")

    def _progress(self, call: str) -> Update:
        content = list(self._diffs.get(call, []))
        if text := self._outputs.get(call):
            content.append({"type": "content", "content": text_block(text)})
        return {"sessionUpdate": "tool_call_update", "toolCallId": call, "content": content}

    def _location(self, place: events.Location) -> dict[str, Any]:
        return {"path": self._path(place.path), **({"line": place.line} if place.line else {})}

    def _path(self, path: str) -> str:
        return os.path.join(self._workspace, path)


def _what(event: events.Undone | events.Judged) -> str:
    if isinstance(event, events.Undone):
        return "restored to before the turn"
    return "accepted" if event.accepted else "rejected"


def _usage(event: events.UsageReported) -> Update:
    """Build the usage update. The protocol has no field for speed, so that is in `_meta`."""
    speed = {
        "model": event.model,
        "tokensPerSecond": round(event.tokens_per_second, 1),
        "rawTokensPerSecond": round(event.raw_tokens_per_second, 1),
        "firstTokenSeconds": round(event.ttft_seconds, 4),
        "inputTokens": event.input_tokens,
        "cachedTokens": event.cached_tokens,
        "outputTokens": event.output_tokens,
    }
    cost = {} if event.cost is None else {"cost": {"amount": event.cost, "currency": "USD"}}
    used = {"used": event.context_used, "size": event.context_limit}
    return {"sessionUpdate": "usage_update", **used, **cost, "_meta": {"fulgur": speed}}


def replay(transcript: Iterable[TranscriptEntry]) -> Iterator[Update]:
    """The updates for a stored session, for an editor that loads it."""
    for number, entry in enumerate(transcript):
        match entry.kind:
            case "user" | "steer":
                yield said(entry.text, "user_message_chunk")
            case "assistant":
                yield said(entry.text)
            case "reasoning":
                yield said(entry.text, "agent_thought_chunk")
            case "tool" | "diff" as kind:
                first = entry.text.split("\n", 1)[0]
                yield {
                    "sessionUpdate": "tool_call",
                    "toolCallId": f"old-{number}",
                    "title": shown(first[:200]),
                    "kind": "edit" if kind == "diff" else "other",
                    "status": "completed",
                    "content": [{"type": "content", "content": text_block(entry.text[:_MOST_OUTPUT])}],
                }
            case _:
                yield said(f"{entry.text}\n", "agent_thought_chunk")
