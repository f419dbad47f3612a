"""Approvals that wait for an answer. A key meant for the draft must never allow a command."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from fulgur.protocol.agent import ApprovalAsked
from fulgur.ui.tui.draft import Draft

ARM_SECONDS = 0.3  # after the question appeared
STILL_SECONDS = 0.5  # after the last key


@dataclass
class HunkChoice:
    """The hunks of a question, decided one by one."""

    hunks: tuple[str, ...]
    rejected: list[int] = field(default_factory=list)
    """Counted from 1."""
    number: int = 1
    """The hunk that is shown."""

    @property
    def done(self) -> bool:
        return self.number > len(self.hunks)

    def judge(self, take: bool, *, rest: bool = False) -> None:
        """Take or leave the current hunk, or it and all after it."""
        until = len(self.hunks) if rest else self.number
        if not take:
            self.rejected += range(self.number, until + 1)
        self.number = until + 1


class Approvals:
    """One question at a time. Its keys count only once the person has stopped typing; then the draft is set aside."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._waiting: deque[ApprovalAsked] = deque()
        self._shown = 0.0
        self.armed = False
        self.refusing = False  # the answer is no, and its reason is being typed
        self.stashed = ""
        self.choice: HunkChoice | None = None

    @property
    def current(self) -> ApprovalAsked | None:
        return self._waiting[0] if self._waiting else None

    @property
    def wants_key(self) -> bool:
        """Whether y, a and n are answers now, not text."""
        return self.armed and not self.refusing and not self._draft.text

    def ask(self, event: ApprovalAsked) -> None:
        """Add a question; it waits for those before it."""
        self._waiting.append(event)
        if len(self._waiting) == 1:
            self._shown = time.monotonic()

    def arm(self) -> float | None:
        """Arm the question's keys if the person has stopped typing; else return how long to wait before trying
        again."""
        if self.current is None or self.armed:
            return None
        now = time.monotonic()
        wait = max(self._shown + ARM_SECONDS - now, self._draft.last_key + STILL_SECONDS - now)
        if wait > 0:
            return wait
        self.armed = True
        self.stashed = self._draft.take()
        return None

    @property
    def choosing(self) -> bool:
        """Whether y and n are about a single hunk."""
        return self.choice is not None and not self.choice.done

    def choose(self) -> None:
        """Decide hunk by hunk from here on."""
        if self.current is not None and self.current.hunks:
            self.choice = HunkChoice(self.current.hunks)

    def refuse(self, on: bool = True) -> None:
        """Start typing the reason for a no; with `on` False, cancel that."""
        self.refusing, self._draft.completes = on, not on
        if not on:
            self.choice = None

    def settle(self, approval_id: str) -> None:
        """Remove a question that was answered, here or elsewhere; the draft comes back."""
        if self.current is None or self.current.approval_id != approval_id:
            self._waiting = deque(asked for asked in self._waiting if asked.approval_id != approval_id)
            return
        self._waiting.popleft()
        self._shown = time.monotonic()
        self._release()

    def clear(self) -> None:
        """Drop all questions when the turn ends."""
        self._waiting.clear()
        self._release()

    def _release(self) -> None:
        self.armed = False
        self.refuse(False)
        if self.stashed:
            self._draft.put_back(self.stashed)
            self.stashed = ""
