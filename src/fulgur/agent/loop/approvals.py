"""Who decides whether a call may run: the policy, the project's remembered answers, or the person."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fulgur.agent.loop.commands import Allowed, covered, to_remember
from fulgur.agent.loop.read_only import is_read_only
from fulgur.config.settings import Settings
from fulgur.protocol.agent import AgentEvent, ApprovalAsked, ApprovalSettled, Decision
from fulgur.sandbox.policy import Policy

_DENIED_BY_SANDBOX = re.compile(
    r"read-only file system|permission denied|operation not permitted|network is unreachable|could not resolve host"
    r"|temporary failure in name resolution|connection refused|EROFS|EPERM|EACCES",
    re.IGNORECASE,
)

_EVERY_CHANGE = "asked before every change: approval_policy is untrusted"


@dataclass(frozen=True)
class Question:
    """What a person is asked: what would run, why they are asked, and what `always` would remember."""

    call_id: str
    title: str
    reason: str
    always: tuple[tuple[str, ...], ...] = ()
    """As it is stored; empty when nothing can be remembered."""
    shown: tuple[str, ...] = ()
    """The same for people."""
    exact: bool = False
    outside: bool = False
    diff: str = ""
    """What it would change in files."""
    hunks: tuple[str, ...] = ()
    """The same in parts."""


@dataclass(frozen=True)
class Answered:
    """A person's answer. `rejected`: hunks to leave out, counted from 1."""

    decision: Decision
    rejected: tuple[int, ...] = ()

    @property
    def allows(self) -> bool:
        return self.decision in ("once", "always")


class Approvals:
    """Asks by event and waits for `settle`. With `interactive` False (exec), whatever would be asked is denied."""

    def __init__(
        self, settings: Settings, policy: Policy, emit: Callable[[AgentEvent], None], interactive: bool
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._emit = emit
        self._interactive = interactive
        self._waiting: dict[str, asyncio.Future[Answered]] = {}

    def about_command(
        self, call_id: str, command: str, folder: Path, *, unsandboxed: bool, reason: str
    ) -> Question | None:
        """The question to ask before a command runs, or None. Leaving the sandbox always asks, unless the person has
        allowed exactly this command outside it before."""
        outside = unsandboxed or self._policy.mode == "danger-full-access"
        if covered(command, self._allowed(), str(folder), outside=outside):
            return None
        if unsandboxed and self._policy.mode != "danger-full-access":
            why = "outside the sandbox" + (f"; the model says: {reason}" if reason else "")
            return self._about(call_id, command, folder, why, outside=True)
        if self._settings.approval_policy == "untrusted" and not self.spared(command):
            return self._about(call_id, command, folder, _EVERY_CHANGE, outside=outside)
        return None

    def allowed_outside(self, command: str, folder: Path) -> bool:
        """Whether a person has permanently allowed the command outside the sandbox."""
        return covered(command, self._allowed(), str(folder), outside=True)

    def spared(self, command: str) -> bool:
        """Whether a command escapes a question only because it is read-only and stays inside the sandbox."""
        inside = self._policy.mode != "danger-full-access"
        return inside and self._settings.approval_policy == "untrusted" and is_read_only(command)

    @property
    def asks_about_changes(self) -> bool:
        """Whether our own tools must ask before they change files."""
        return self._settings.approval_policy == "untrusted"

    def about_change(
        self, call_id: str, title: str, paths: Sequence[str], diff: str, hunks: Sequence[str]
    ) -> Question | None:
        """The question to ask before one of our tools changes these files; `always` covers these files."""
        if not self.asks_about_changes:
            return None
        names = tuple(("edit", path) for path in paths)
        if names and set(names) <= set(self._stored()):
            return None
        shown = ("edit", *paths) if paths else ()
        parts = tuple(hunks) if len(hunks) > 1 else ()
        return Question(call_id, title, _EVERY_CHANGE, names, shown, diff=diff, hunks=parts)

    def about_tool(self, call_id: str, name: str, title: str) -> Question | None:
        """The question to ask before a tool of an MCP server runs: it is outside the sandbox."""
        tool = ("mcp", name)
        if self._settings.approval_policy != "untrusted" or tool in self._stored():
            return None
        return Question(call_id, title, _EVERY_CHANGE, (tool,), tool)

    def about_work(self, call_id: str, title: str, why: str) -> Question | None:
        """The question to ask before a tool whose effects cannot be shown beforehand; its answer is never
        remembered."""
        if not why or self._settings.approval_policy != "untrusted":
            return None
        return Question(call_id, title, f"{_EVERY_CHANGE}; {why}")

    def about_failure(self, call_id: str, command: str, folder: Path, output: str) -> Question | None:
        """Offer a run outside the sandbox after the sandbox seems to have refused something (`on-failure`)."""
        if self._settings.approval_policy != "on-failure" or self._policy.mode == "danger-full-access":
            return None
        found = _DENIED_BY_SANDBOX.search(output)
        if found is None:
            return None
        reason = f"it failed in the sandbox ({found.group().lower()}); run it again outside the sandbox?"
        return self._about(call_id, command, folder, reason, outside=True)

    def _about(self, call_id: str, command: str, folder: Path, reason: str, *, outside: bool) -> Question:
        if folder != self._policy.workspace:
            reason = f"in {folder}: {reason}"
        allowed = to_remember(command, str(folder), outside=outside)
        exact = not allowed.beginning
        shown = (command,) if exact else allowed.beginning
        return Question(call_id, f"$ {command}", reason, (allowed.encode(),), shown, exact, outside)

    def _stored(self) -> list[tuple[str, ...]]:
        return self._settings.records.approved(self._settings.project)

    def _allowed(self) -> list[Allowed]:
        return [allowed for stored in self._stored() if (allowed := Allowed.decode(stored)) is not None]

    async def ask(self, turn: int, question: Question) -> Answered:
        """Return the person's answer; `deny` if nobody can be asked."""
        approval_id = secrets.token_hex(4)
        if not self._interactive or self._settings.approval_policy == "never":
            self._emit(ApprovalSettled(turn=turn, approval_id=approval_id, decision="deny", by="policy"))
            return Answered("deny")
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting[approval_id] = future
        self._emit(
            ApprovalAsked(
                turn=turn,
                approval_id=approval_id,
                call_id=question.call_id,
                title=question.title,
                reason=question.reason,
                prefix=question.shown,
                exact=question.exact,
                outside=question.outside,
                diff=question.diff,
                hunks=question.hunks,
            )
        )
        try:
            answer = await future
        finally:
            del self._waiting[approval_id]
        decision, rejected = answer.decision, tuple(n for n in answer.rejected if 1 <= n <= len(question.hunks))
        if answer.allows and rejected and len(set(rejected)) == len(question.hunks):
            decision, rejected = "deny", ()
        if decision == "always":
            if question.always:
                for allowed in question.always:
                    self._settings.records.approve(self._settings.project, allowed)
            else:
                decision = "once"
        self._emit(ApprovalSettled(turn=turn, approval_id=approval_id, decision=decision, rejected=rejected))
        return Answered(decision, rejected)

    def settle(self, approval_id: str, answer: Answered) -> bool:
        """Deliver a person's answer; False if nothing waits under that id."""
        future = self._waiting.get(approval_id)
        if future is None or future.done():
            return False
        future.set_result(answer)
        return True
