"""Who decides whether a call may run: the policy, what was remembered for this project, or the person."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from fulgur.agent.loop.commands import covered, only_looks, rememberable_prefix
from fulgur.config.settings import Settings
from fulgur.protocol.agent import AgentEvent, ApprovalAsked, ApprovalSettled, Decision
from fulgur.sandbox.policy import Policy

_DENIED_BY_SANDBOX = re.compile(
    r"read-only file system|permission denied|operation not permitted|network is unreachable|could not resolve host"
    r"|temporary failure in name resolution|connection refused|EROFS|EPERM|EACCES",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Question:
    """What a person is asked: one line, why, and the prefix that `always` would remember."""

    call_id: str
    title: str
    reason: str
    prefix: tuple[str, ...] = ()


class Approvals:
    """Asks by event and waits for `settle`. `interactive` False (exec): what would be asked is denied."""

    def __init__(
        self, settings: Settings, policy: Policy, emit: Callable[[AgentEvent], None], interactive: bool
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._emit = emit
        self._interactive = interactive
        self._waiting: dict[str, asyncio.Future[Decision]] = {}

    @property
    def remembered(self) -> list[tuple[str, ...]]:
        """The prefixes allowed in this project."""
        return self._settings.records.approved(self._settings.project)

    def about_command(self, call_id: str, command: str, *, unsandboxed: bool, reason: str) -> Question | None:
        """What must be asked before a command runs; None when nothing."""
        title, prefix = f"$ {command}", rememberable_prefix(command)
        if covered(command, self.remembered):
            return None
        if unsandboxed and self._policy.mode != "danger-full-access":
            return Question(call_id, title, reason or "it asks to run outside the sandbox", prefix)
        if self._settings.approval_policy == "untrusted" and not only_looks(command):
            return Question(call_id, title, "approval_policy is untrusted", prefix)
        return None

    def about_change(self, call_id: str, title: str) -> Question | None:
        """What must be asked before a tool of ours changes files."""
        if self._settings.approval_policy == "untrusted" and ("apply_patch",) not in self.remembered:
            return Question(call_id, title, "approval_policy is untrusted", ("apply_patch",))
        return None

    def about_tool(self, call_id: str, name: str, title: str) -> Question | None:
        """What must be asked before a tool of an MCP server runs: it is outside the sandbox."""
        if self._settings.approval_policy == "untrusted" and ("mcp", name) not in self.remembered:
            return Question(call_id, title, "approval_policy is untrusted", ("mcp", name))
        return None

    def about_failure(self, call_id: str, command: str, output: str) -> Question | None:
        """Whether to offer a run outside after the sandbox seems to have refused something (`on-failure`)."""
        if self._settings.approval_policy != "on-failure" or self._policy.mode == "danger-full-access":
            return None
        found = _DENIED_BY_SANDBOX.search(output)
        if found is None:
            return None
        reason = f"it failed in the sandbox ({found.group().lower()}); run it again without?"
        return Question(call_id, f"$ {command}", reason, rememberable_prefix(command))

    async def ask(self, turn: int, question: Question) -> Decision:
        """The person's answer; `deny` where nobody can be asked."""
        approval_id = secrets.token_hex(4)
        if not self._interactive or self._settings.approval_policy == "never":
            self._emit(ApprovalSettled(turn=turn, approval_id=approval_id, decision="deny", by="policy"))
            return "deny"
        future: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._waiting[approval_id] = future
        self._emit(
            ApprovalAsked(
                turn=turn,
                approval_id=approval_id,
                call_id=question.call_id,
                title=question.title,
                reason=question.reason,
                prefix=question.prefix,
            )
        )
        try:
            decision = await future
        finally:
            del self._waiting[approval_id]
        if decision == "always":
            if question.prefix:
                self._settings.records.approve(self._settings.project, question.prefix)
            else:
                decision = "once"
        self._emit(ApprovalSettled(turn=turn, approval_id=approval_id, decision=decision))
        return decision

    def settle(self, approval_id: str, decision: Decision) -> bool:
        """A person's answer; False when nothing waits under that id."""
        future = self._waiting.get(approval_id)
        if future is None or future.done():
            return False
        future.set_result(decision)
        return True
