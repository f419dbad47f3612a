"""What an agent reports about itself, its models and its sessions: types only."""

from __future__ import annotations

import msgspec

from fulgur.protocol.agent import Way


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
    mcp_tools: tuple[str, ...] = ()
    """`SERVER__TOOL` of every tool that MCP servers offer."""


class ModelOffer(msgspec.Struct, frozen=True, kw_only=True):
    """A model that could answer. `name` is what `/model` takes; 0, {} and "" stand for what is not known."""

    name: str
    provider: str
    context: int = 0
    tokens_per_second: float = 0.0
    """As last measured on this machine."""
    price: dict[str, float] = {}
    """Per million tokens: `input`, `cached_input`, `output`."""
    note: str = ""


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
    subagent: bool = False
    """It belongs to another session, and lists of sessions leave it out."""
    members: dict[str, str] = {}
    """The sessions of its own subagents, and their names."""


class TranscriptEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a resumed session's transcript: `kind` is user, steer, assistant, reasoning, tool, diff or note."""

    turn: int
    kind: str
    text: str
