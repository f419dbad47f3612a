"""The messages between an agent host and its clients: JSON-RPC, types only.

The host sends notifications. `event` holds one numbered event of a session. A session's numbers count from 1 without
gaps and are valid within one `epoch` (one lifetime of the host). `events` holds several; its `seq` is the number of the
first. `resync` replaces events that a slow client missed: it holds the session's current state, and the numbers
continue after its `seq`. `closed` ends a session's events. `board` goes to clients that called `board.follow`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from fulgur.protocol.agent import ApprovalAsked, Decision, PlanStep, UsageReported
from fulgur.protocol.session import Status, TranscriptEntry


class Open(msgspec.Struct, kw_only=True):
    """`session.open`: a new session, a stored one (`session`: its id, the start of it, or "last"), or a copy (`fork`).

    `worktree`: the session gets a git worktree of its own beside the workspace.
    """

    workspace: str
    session: str | None = None
    fork: str | None = None
    model: str | None = None
    profile: str | None = None
    overrides: list[str] = msgspec.field(default_factory=list)
    worktree: bool = False


class Named(msgspec.Struct, kw_only=True):
    """A session."""

    session: str


class Attach(Named, kw_only=True):
    """`session.attach`: the events after number `after` of this `epoch`; otherwise the current state and what follows.

    With `frame_ms` they come batched as `events`, at most one message per `frame_ms`, for screens that show no more.
    """

    after: int = 0
    epoch: str = ""
    frame_ms: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0


class Close(Named, kw_only=True):
    """`session.close`; `discard` removes its worktree and branch too."""

    discard: bool = False


class Listing(msgspec.Struct, kw_only=True):
    """`session.list`: of one workspace, or of all."""

    workspace: str | None = None


class Submit(Named, kw_only=True):
    """`turn.submit`. `message` is an id: a prompt that is sent again with the same one is taken once. With
    `expected_turn` it is refused unless that turn is running."""

    text: str
    how: Literal["steer", "queue"] = "steer"
    message: str = ""
    expected_turn: int | None = None


class Withdraw(Named, kw_only=True):
    """`turn.withdraw`: take a queued prompt back, the last one with this text; false when it is not queued any more."""

    text: str


class Submitted(msgspec.Struct, kw_only=True):
    """What became of a submitted prompt."""

    outcome: Literal["started", "steered", "queued"]


class Tell(Named, kw_only=True):
    """`session.tell`: redirect one subagent, or `all` of them."""

    member: str
    text: str


class Program(Named, kw_only=True):
    """`session.program`: /tasks, /plan, /variants or /take as they are typed; answered when the turn is over."""

    text: str


class OfferBuffers(Named, kw_only=True):
    """`session.buffers`: this client has files open. The host then calls the client: `buffer.read` (the text, or null)
    and `buffer.write` (whether it was done), each with `session` and `path`."""

    reads: bool
    writes: bool


class Answer(Named, kw_only=True):
    """`approval.answer`. `rejected`: hunks of the question that are left out, counted from 1."""

    approval: str
    decision: Decision
    rejected: tuple[int, ...] = ()


class SetModel(Named, kw_only=True):
    """`session.model`."""

    model: str
    provider: str | None = None


class SetOption(Named, kw_only=True):
    """`session.set`: config keys for this session, as `-c` takes them."""

    overrides: list[str]


class OwnCommand(Named, kw_only=True):
    """`session.shell`: a command that the person typed."""

    command: str


class Job(Named, kw_only=True):
    """`session.job`: the output of a background command; `stop` ends it first."""

    job: str
    stop: bool = False


class Choose(Named, kw_only=True):
    """`changes.accept` and `changes.reject`: everything, one file, or one hunk of it."""

    path: str | None = None
    hunk: str | None = None


class Hunk(msgspec.Struct, kw_only=True):
    """One run of changed lines. `id` is valid as long as the hunk is as it was shown."""

    id: str
    old_start: int
    new_start: int
    old: list[str]
    new: list[str]


class FileChange(msgspec.Struct, kw_only=True):
    """What a session changed in one file and nobody has judged yet. `old` and `new`: None where there is no text."""

    path: str
    kind: Literal["added", "modified", "deleted"]
    old: str | None
    new: str | None
    hunks: list[Hunk]


class Attached(msgspec.Struct, kw_only=True):
    """The state of a session when a client attaches. Events after number `seq` follow.

    While a turn runs there are two cases. If its events are still kept, they follow from its start, and `transcript`
    holds what came before it. Otherwise `transcript` and `partial` hold what was said so far, and `waiting` the open
    approvals.
    """

    session: str
    epoch: str
    seq: int
    status: Status
    transcript: list[TranscriptEntry]
    queued: list[str]
    partial: str = ""
    waiting: list[ApprovalAsked] = msgspec.field(default_factory=list)
    plan: list[PlanStep] = msgspec.field(default_factory=list)
    usage: list[UsageReported] = msgspec.field(default_factory=list)
    """Of the answers before `seq`, the oldest first."""
    worktree: str = ""
    branch: str = ""
    """The branch of its worktree."""


class Merged(msgspec.Struct, kw_only=True):
    """`worktree.merge`: whether it was merged, else where it conflicts; `text` says it in one line."""

    merged: bool
    commit: str
    conflicts: list[str]
    text: str


class SessionInfo(msgspec.Struct, kw_only=True):
    """One session in a list, live or stored."""

    session: str
    workspace: str
    title: str
    model: str
    turns: int
    updated: float
    live: bool = False
    running: bool = False
    waiting: int = 0
    """Open questions: who needs you."""
    clients: int = 0
    worktree: str = ""
    unjudged: int = 0
    """Files changed and neither accepted nor rejected."""
    parent: str = ""
    """Of a subagent or a variant: the session that it worked for. It can only be read (`session.read`)."""


class Board(msgspec.Struct, kw_only=True):
    """The notification `board`, for clients of `board.follow`: the live sessions, whenever one of them changes."""

    sessions: list[SessionInfo]


class HostInfo(msgspec.Struct, kw_only=True):
    """`host.info`."""

    version: str
    epoch: str
    sessions: int
    clients: int
