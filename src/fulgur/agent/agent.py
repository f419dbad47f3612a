"""The agent as its screens use it: prompts go in as plain calls, everything else comes out as events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from fulgur.config.settings import Settings
from fulgur.protocol.agent import AgentEvent, Decision, SessionSummary, Status, TranscriptEntry


class Agent:
    """One session on one workspace.

    `submit`, `steer`, `queue`, `stop` and `approve` return at once and never block a key; what they cause arrives as events.
    """

    @classmethod
    async def open(cls, settings: Settings, *, session: str | None = None, fork: str | None = None) -> Agent:
        """Start a new session, go on with a stored one (`session`: id, prefix of an id, or "last"), or fork one."""
        raise NotImplementedError

    def events(self) -> AsyncIterator[AgentEvent]:
        """All events from now on, in order; ends after `close`. Each call is its own subscription."""
        raise NotImplementedError

    def submit(self, text: str) -> None:
        """Start a turn; while one runs this is `steer`."""

    def steer(self, text: str) -> None:
        """Redirect the running answer at the next token; what was said stays. Without a running turn this is `submit`."""

    def queue(self, text: str) -> None:
        """Keep `text` for a turn of its own after this one (at once when idle)."""

    def stop(self) -> None:
        """Stop the running turn and keep what was said; running commands are ended. Queued prompts stay queued until the next submit."""

    def approve(self, approval_id: str, decision: Decision) -> None:
        """Answer an `approval.asked`."""

    async def undo(self) -> None:
        """Put the files back to what they were before the last turn that changed any (`Undone`)."""

    async def compact(self) -> None:
        """Replace old items by a summary now (`Compacted`)."""

    async def set_model(self, model: str, *, provider: str | None = None) -> None:
        """Answer with another model from the next turn on; warns about keys without effect on it."""

    async def set_profile(self, name: str) -> None:
        """Apply the profile's settings from the next turn on."""

    def set_fast(self, on: bool) -> None:
        """Ask for the fast service tier (`service_tier = "fast"`), or not."""

    async def models(self) -> list[str]:
        """The names of the models the provider offers."""
        raise NotImplementedError

    async def resume(self, session: str) -> None:
        """Leave this session and go on with a stored one (id, prefix of an id, or "last"); `SessionStarted` follows."""

    async def fork(self) -> str:
        """Go on in a copy of this session from here; the id of the copy."""
        raise NotImplementedError

    def sessions(self) -> list[SessionSummary]:
        """Stored sessions of this workspace, newest first."""
        raise NotImplementedError

    def transcript(self) -> list[TranscriptEntry]:
        """What was said so far, for a screen that shows a resumed session."""
        raise NotImplementedError

    def diff(self) -> str:
        """Unified diff of every file changed in this session, against its start."""
        raise NotImplementedError

    def status(self) -> Status:
        """Which model really answers, the backend, limits, context, sandbox, and every config key with its source."""
        raise NotImplementedError

    @property
    def running(self) -> bool:
        """Whether a turn runs."""
        raise NotImplementedError

    @property
    def workspace(self) -> Path:
        """The project folder."""
        raise NotImplementedError

    async def close(self) -> None:
        """Stop the turn, end the shell, close the connection; the session stays on disk."""
