"""Prompts between the Enter key and the agent: shown until the agent takes them, given back if it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fulgur.agent.agent import Agent

Kind = Literal["submit", "steer", "queue", "command"]


class Outbox:
    """`pending`: sent, or waiting for the agent to open. `queued`: kept by the agent for later turns."""

    def __init__(self, run_command: Callable[[Agent, str], None]) -> None:
        self._run_command = run_command
        self.pending: list[str] = []
        self.queued: tuple[str, ...] = ()
        self._early: list[tuple[Kind, str]] = []

    def send(self, agent: Agent | None, kind: Kind, text: str) -> None:
        """Pass a prompt to the agent, or keep it until there is one."""
        if agent is None:
            self._early.append((kind, text))
        if agent is None or kind in ("submit", "steer"):
            self.pending.append(text)
        if agent is not None:
            self._call(agent, kind, text)

    def send_early(self, agent: Agent) -> None:
        """Send what waited for the agent, in order, now that it is open."""
        early, self._early = self._early, []
        for kind, text in early:
            if kind not in ("submit", "steer"):
                self.pending.remove(text)
            self._call(agent, kind, text)

    def taken(self, text: str) -> None:
        """Remove a prompt that the agent has begun with."""
        if text in self.pending:
            self.pending.remove(text)

    def are_queued(self, prompts: tuple[str, ...]) -> None:
        """Update what the agent has queued; some may be steers that arrived just when the turn ended."""
        for text in set(prompts):
            if prompts.count(text) > self.queued.count(text):
                self.taken(text)
        self.queued = prompts

    def take_back(self) -> list[str]:
        """Return what the agent never took up."""
        texts, self.pending, self._early = self.pending, [], []
        return texts

    def _call(self, agent: Agent, kind: Kind, text: str) -> None:
        match kind:
            case "submit":
                agent.submit(text)
            case "steer":
                agent.steer(text)
            case "queue":
                agent.queue(text)
            case "command":
                self._run_command(agent, text)
