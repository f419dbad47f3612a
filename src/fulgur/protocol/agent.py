"""What the agent tells its screens and its callers: one vocabulary of events, types only.

Order within a turn: `turn.started`, then any others, then exactly one of `turn.done`, `turn.stopped`, `turn.failed`.
`turn.done` is sent only after the turn is on disk (fsync), so what was shown as done survives a kill.
`tool.started` comes before the `tool.output`s and the one `tool.finished` of its `call_id`; calls may interleave.
Text is sent once: after a dropped socket or a steer the deltas go on where they were, nothing is repeated.
`encode` gives one JSON line per event (`fulgur exec --json`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

Decision = Literal["once", "always", "deny", "stop"]
"""`once`: this call. `always`: what `prefix` names, in this project. `deny`: not this call. `stop`: end the turn."""

Way = Literal["edit", "tools", "chat"]
"""How a turn is worked: the edit path, the tool loop, or a plain answer by a model that does neither."""


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The base of every event."""


class SessionStarted(AgentEvent, frozen=True, tag="session.started"):
    """The agent is ready. `resumed_turns` > 0 when it goes on with a stored session."""

    session_id: str
    path: str
    model: str
    resumed_turns: int = 0


class TurnStarted(AgentEvent, frozen=True, tag="turn.started"):
    """A prompt was taken up; `reason` says in one line which way was chosen and why."""

    turn: int
    text: str
    way: Way
    reason: str


class MessageDelta(AgentEvent, frozen=True, tag="text.delta"):
    """More of the answer."""

    turn: int
    text: str


class ThinkingDelta(AgentEvent, frozen=True, tag="reasoning.delta"):
    """More of the model's reasoning."""

    turn: int
    text: str


class ToolStarted(AgentEvent, frozen=True, tag="tool.started"):
    """A tool call begins. `title` is one line for people, such as `$ pytest -q` or `read src/a.py`."""

    turn: int
    call_id: str
    name: str
    title: str
    arguments: str = ""


class ToolOutput(AgentEvent, frozen=True, tag="tool.output"):
    """More output of a running call, as it appears (for screens; the bounded result is in `tool.finished`)."""

    turn: int
    call_id: str
    text: str


class ToolFinished(AgentEvent, frozen=True, tag="tool.finished"):
    """A tool call ended; `output` is what the model gets to read."""

    turn: int
    call_id: str
    name: str
    ok: bool
    output: str
    seconds: float = 0.0


class ApprovalAsked(AgentEvent, frozen=True, tag="approval.asked"):
    """The agent waits for `Agent.approve(approval_id, decision)`. `prefix`: what `always` would remember, if it can:
    the words a command begins with, or with `exact` the one command. `outside`: it would run without the sandbox.
    `diff`: what it would change in files."""

    turn: int
    approval_id: str
    call_id: str
    title: str
    reason: str
    prefix: tuple[str, ...] = ()
    exact: bool = False
    outside: bool = False
    diff: str = ""


class ApprovalSettled(AgentEvent, frozen=True, tag="approval.settled"):
    """An approval was answered, by a person ("user"), a remembered prefix ("remembered") or the policy ("policy")."""

    turn: int
    approval_id: str
    decision: Decision
    by: str = "user"


class FileChanged(AgentEvent, frozen=True, tag="file.changed"):
    """A file was changed by a tool; `diff` is unified, with `a/` and `b/` paths relative to the workspace."""

    turn: int
    path: str
    kind: Literal["added", "modified", "deleted"]
    diff: str
    added: int = 0
    removed: int = 0


class GuardReported(AgentEvent, frozen=True, tag="guard.reported"):
    """A check of an edit: `problems` is empty when it passed. `fed_back`: the model gets another try (once)."""

    turn: int
    check: str
    problems: tuple[str, ...] = ()
    fed_back: bool = False


class Warned(AgentEvent, frozen=True, tag="warning"):
    """Something a person should know; the turn goes on. `quiet`: it can wait until the person asks (`/status`)."""

    message: str
    hint: str = ""
    quiet: bool = False


class UsageReported(AgentEvent, frozen=True, tag="usage"):
    """Numbers of one answer. `model` is the one that really answered; `cost` is None when its price is unknown.

    `draft_tokens` were proposed by drafts (on the edit path: by the text being edited), `accepted_tokens` of them were
    right. `raw_tokens_per_second` counts only what the model wrote itself, without accepted drafts.
    """

    turn: int
    model: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    tokens_per_second: float
    ttft_seconds: float
    context_used: int
    context_limit: int
    cost: float | None = None
    draft_tokens: int = 0
    accepted_tokens: int = 0
    raw_tokens_per_second: float = 0.0


class TurnSteered(AgentEvent, frozen=True, tag="steered"):
    """The running answer was cut and goes on in the direction of `text`; what was said stays."""

    turn: int
    text: str


class Queued(AgentEvent, frozen=True, tag="queued"):
    """`text` is kept and starts its own turn after this one; `position` counts from 1."""

    text: str
    position: int


class Compacted(AgentEvent, frozen=True, tag="compacted"):
    """Old items were replaced by a summary in what the model sees; the session file keeps them all."""

    before_tokens: int
    after_tokens: int


class Undone(AgentEvent, frozen=True, tag="undone"):
    """Files are back to what they were before `turn`. `kept`: files changed since, which keep that change."""

    turn: int
    paths: tuple[str, ...]
    kept: tuple[str, ...] = ()


class TurnDone(AgentEvent, frozen=True, tag="turn.done"):
    """The turn is finished and on disk; `text` is the last message of the model."""

    turn: int
    text: str


class TurnStopped(AgentEvent, frozen=True, tag="turn.stopped"):
    """The turn was stopped; `text` is what had been said and stays in the history."""

    turn: int
    text: str


class TurnFailed(AgentEvent, frozen=True, tag="turn.failed"):
    """The turn could not be finished; `text` is what had been said and stays in the history."""

    turn: int
    message: str
    hint: str = ""
    text: str = ""


AnyEvent = (
    SessionStarted
    | TurnStarted
    | MessageDelta
    | ThinkingDelta
    | ToolStarted
    | ToolOutput
    | ToolFinished
    | ApprovalAsked
    | ApprovalSettled
    | FileChanged
    | GuardReported
    | Warned
    | UsageReported
    | TurnSteered
    | Queued
    | Compacted
    | Undone
    | TurnDone
    | TurnStopped
    | TurnFailed
)

TURN_ENDS = (TurnDone, TurnStopped, TurnFailed)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def encode(event: AgentEvent) -> bytes:
    """One line of JSON, without the newline."""
    return _encoder.encode(event)


def decode(line: bytes) -> AnyEvent:
    """The event of one line."""
    return _decoder.decode(line)


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`/status`: what really answers, and how it is set up."""

    session_id: str
    session_path: str
    workspace: str
    model: str
    """The model asked for."""
    answering_model: str
    """The model named in the last response; empty before the first."""
    provider: str
    base_url: str
    way: Way
    way_reason: str
    abilities: tuple[str, ...]
    fast: bool
    turns: int
    running: bool
    queued: int
    context_used: int
    context_limit: int
    sandbox: str
    """The mode and the backend that keeps it, such as `workspace-write by bubblewrap, no network`."""
    approval_policy: str
    remembered: tuple[str, ...]
    rules: tuple[str, ...]
    """AGENTS.md files in use."""
    config: tuple[tuple[str, str, str], ...]
    """Every effective key: name, value, source."""
    warnings: tuple[str, ...]
    cost: float | None = None


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One stored session, for a list to choose from."""

    session_id: str
    path: str
    workspace: str
    model: str
    started: float
    updated: float
    turns: int
    first_prompt: str
    forked_from: str = ""
    undo: bool = True
    """False when what /undo needs was let go because of its age or size."""


class TranscriptEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a resumed session's transcript: `kind` is user, steer, assistant, reasoning, tool, diff or note."""

    turn: int
    kind: str
    text: str
