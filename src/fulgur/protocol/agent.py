"""The events that an agent sends to its screens and callers. Types only.

Order within a turn: `turn.started`, then any others, then exactly one of `turn.done`, `turn.stopped`, `turn.failed`.
`turn.done` is sent only after the turn is on disk (fsync), so what was shown as done survives a kill.
`tool.started` comes before the `tool.output`s and the one `tool.finished` of its `call_id`; calls may interleave.
Text is sent once: after a dropped socket or a steer the deltas resume where they stopped.
`encode` gives one JSON line per event (`fulgur exec --json`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

Decision = Literal["once", "always", "deny", "stop"]
"""`once`: this call. `always`: what `prefix` names, in this project. `deny`: not this call. `stop`: end the turn."""

Way = Literal["edit", "tools", "chat"]
"""How a turn is worked: the edit path, the tool loop, or a plain answer by a model that does neither."""


ToolKind = Literal["read", "edit", "search", "execute", "think", "other"]
"""What a tool does, for screens that show an icon or follow the agent through the files."""


class Location(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that a call is about, relative to the workspace; `line` counts from 1, 0 means the whole file."""

    path: str
    line: int = 0


class PlanStep(msgspec.Struct, frozen=True):
    """One step of the model's plan."""

    step: str
    status: Literal["pending", "in_progress", "completed"]


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The base of every event."""


class SessionStarted(AgentEvent, frozen=True, tag="session.started"):
    """The agent is ready. `resumed_turns` > 0 when it continues a stored session."""

    session_id: str
    path: str
    model: str
    resumed_turns: int = 0


class TurnStarted(AgentEvent, frozen=True, tag="turn.started"):
    """A turn began; `reason` says in one line which way was chosen and why."""

    turn: int
    text: str
    way: Way
    reason: str


class ImagesSent(AgentEvent, frozen=True, tag="images"):
    """The images named in the prompt, which go to the model with it."""

    turn: int
    names: tuple[str, ...]


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
    kind: ToolKind = "other"
    places: tuple[Location, ...] = ()


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
    """The agent waits for `Agent.approve(approval_id, decision)`. `prefix`: what `always` would remember, if anything:
    the leading words of the command, or with `exact` the one command. `outside`: it would run without the sandbox.
    `diff`: what it would change in files. `hunks`: the same change in parts, each a diff of its own, of which `approve`
    may leave some out; empty when there is nothing to choose."""

    turn: int
    approval_id: str
    call_id: str
    title: str
    reason: str
    prefix: tuple[str, ...] = ()
    exact: bool = False
    outside: bool = False
    diff: str = ""
    hunks: tuple[str, ...] = ()


class ApprovalSettled(AgentEvent, frozen=True, tag="approval.settled"):
    """An approval was answered, by a person ("user"), a remembered prefix ("remembered") or the policy ("policy").
    `rejected`: the hunks that were left out, counted from 1."""

    turn: int
    approval_id: str
    decision: Decision
    by: str = "user"
    rejected: tuple[int, ...] = ()


class FileChanged(AgentEvent, frozen=True, tag="file.changed"):
    """A file was changed by a tool; `diff` is unified, with `a/` and `b/` paths relative to the workspace.

    `old` and `new` are the whole text before and after, None where there is no such text: the file was not there, is
    binary or very large.
    """

    turn: int
    path: str
    kind: Literal["added", "modified", "deleted"]
    diff: str
    added: int = 0
    removed: int = 0
    call_id: str = ""
    old: str | None = None
    new: str | None = None


class PlanChanged(AgentEvent, frozen=True, tag="plan"):
    """The model wrote or updated its plan; this one replaces the previous one."""

    turn: int
    steps: tuple[PlanStep, ...]


class GuardStarted(AgentEvent, frozen=True, tag="guard.started"):
    """A check of an edit begins and may take a while; `guard.reported` gives its result unless the turn ends first."""

    turn: int
    check: str


class GuardReported(AgentEvent, frozen=True, tag="guard.reported"):
    """The result of checking an edit: it passed when `problems` and `unchecked` are empty. `unchecked` says why the
    check could not run, or could not cover everything. `fed_back`: the model gets one more try."""

    turn: int
    check: str
    problems: tuple[str, ...] = ()
    unchecked: str = ""
    fed_back: bool = False


class Warned(AgentEvent, frozen=True, tag="warning"):
    """Something a person should know; the turn goes on. `quiet`: it can wait until the person asks (`/status`)."""

    message: str
    hint: str = ""
    quiet: bool = False


class UsageReported(AgentEvent, frozen=True, tag="usage"):
    """The numbers of one answer. `model` is the one that actually answered; `cost` is None when its price is unknown.

    Of the `draft_tokens` that were proposed (on the edit path: from the text being edited), `accepted_tokens` were
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


Side = Literal["fast", "deep"]


class Routed(AgentEvent, frozen=True, tag="routed"):
    """With `model = "auto"`: which model works on the turn from here on, and why. `rule` is the rule's name, `drift`,
    `failed` or `person`; `other` is the model that could take the turn instead (`Agent.overrule`)."""

    turn: int
    side: Side
    model: str
    why: str
    rule: str
    other: str


class RouteCost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The time, tokens and cost that one model spent on a turn."""

    side: Side
    model: str
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None


class RouteCosts(AgentEvent, frozen=True, tag="route.costs"):
    """With `model = "auto"`: what each model spent on the turn; sent before the turn ends."""

    turn: int
    parts: tuple[RouteCost, ...]


class Waiting(AgentEvent, frozen=True, tag="waiting"):
    """The request waits in the server's queue: `position` 1 is next, 0 means that it no longer waits. `seconds` is the
    expected wait, when known."""

    turn: int
    position: int
    seconds: float | None = None


class TurnSteered(AgentEvent, frozen=True, tag="steered"):
    """The running answer was interrupted and continues as `text` asks; what it had said stays."""

    turn: int
    text: str


class QueueChanged(AgentEvent, frozen=True, tag="queue"):
    """The prompts queued for later turns, the next one first; this list replaces the previous one."""

    prompts: tuple[str, ...]


class Compacting(AgentEvent, frozen=True, tag="compacting"):
    """A summary of `reads_tokens` tokens is being written; sent repeatedly until `compacted` or the end of the turn."""

    reads_tokens: int
    written_tokens: int = 0


class Compacted(AgentEvent, frozen=True, tag="compacted"):
    """Old items were replaced by a summary in what the model sees; the session file keeps them all."""

    before_tokens: int
    after_tokens: int


class Undone(AgentEvent, frozen=True, tag="undone"):
    """Files are back to what they were before `turn`. `kept`: files changed since, which keep that change."""

    turn: int
    paths: tuple[str, ...]
    kept: tuple[str, ...] = ()


class MemberStarted(AgentEvent, frozen=True, tag="member.started"):
    """A subagent begins. `member` is its name in this session, `model` the one asked for."""

    member: str
    role: str
    model: str
    task: str


class MemberTold(AgentEvent, frozen=True, tag="member.told"):
    """Progress of a subagent: `kind` is text (a delta), tool, file, check, steered or warning."""

    member: str
    kind: Literal["text", "tool", "file", "check", "steered", "warning"]
    text: str


class MemberFinished(AgentEvent, frozen=True, tag="member.finished"):
    """A subagent has ended. `models` are those named in its responses: the proof of who answered.

    `how` is done, stopped, failed or budget. `conflicts`: files where its change collides with another; then none of it
    was applied to the workspace. `left_out`: in words, which of its changes the person did not accept. With either,
    `diff` is what it would have changed and `patch` the file that holds it.
    """

    member: str
    role: str
    model: str
    models: tuple[str, ...]
    how: str
    text: str
    session_id: str
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    paths: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    patch: str = ""
    diff: str = ""
    left_out: str = ""


class Judged(AgentEvent, frozen=True, tag="judged"):
    """A person accepted changes of these files, or took them back."""

    paths: tuple[str, ...]
    accepted: bool


class ModelChosen(AgentEvent, frozen=True, tag="model"):
    """Another model answers from the next turn on."""

    model: str


class TaskState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One task of a list: `state` is open, running, done or failed; `models` are those that answered."""

    number: int
    text: str
    state: str
    tag: str = ""
    after: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    seconds: float = 0.0


class TasksChanged(AgentEvent, frozen=True, tag="tasks"):
    """A task list as it stands; sent whenever a task begins or ends."""

    path: str
    tasks: tuple[TaskState, ...]


class VariantInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One solution of several: whether the checks pass, why it ranks where it does, and what it would change."""

    number: int
    passes: bool
    reasons: tuple[str, ...]
    diff: str
    proven: bool = False  # it passes, and the tests that cover it ran
    text: str = ""
    models: tuple[str, ...] = ()
    seconds: float = 0.0
    output_tokens: int = 0
    session_id: str = ""


class VariantsRanked(AgentEvent, frozen=True, tag="variants"):
    """Solutions to choose from, the best first (`/take NUMBER`); an empty list means that none are left."""

    task: str
    variants: tuple[VariantInfo, ...] = ()


class JobState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A background command. `began` is a time stamp; `exit_code` is None while it runs, and if it was killed."""

    name: str
    command: str
    began: float
    running: bool
    exit_code: int | None = None


class JobsChanged(AgentEvent, frozen=True, tag="jobs"):
    """The background commands: those running, and those that have ended and not been looked at since."""

    jobs: tuple[JobState, ...]


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
    | ImagesSent
    | MessageDelta
    | ThinkingDelta
    | ToolStarted
    | ToolOutput
    | ToolFinished
    | ApprovalAsked
    | ApprovalSettled
    | FileChanged
    | PlanChanged
    | GuardStarted
    | GuardReported
    | Warned
    | UsageReported
    | Routed
    | RouteCosts
    | Waiting
    | TurnSteered
    | QueueChanged
    | Compacting
    | Compacted
    | Undone
    | MemberStarted
    | MemberTold
    | MemberFinished
    | Judged
    | ModelChosen
    | TasksChanged
    | VariantsRanked
    | JobsChanged
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
