"""What every kind of turn loop is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fulgur.agent.route.models import ModelLink
from fulgur.agent.session.state import SessionState
from fulgur.config.settings import Settings
from fulgur.protocol.agent import AgentEvent


@dataclass
class Progress:
    """State that lasts from turn to turn: how full the context is, and what the server still holds of it."""

    context_used: int = 0
    covered: int = 0
    """How many visible items `context_used` and `response_id` cover."""
    response_id: str | None = None
    answering_model: str = ""
    cost: float | None = None
    tier_told: bool = False
    """Whether it was said that the server does not give the tier asked for."""
    greeted: bool = False
    """Whether the hooks of the session's start have run."""

    def forget_server(self) -> None:
        """After a change of connection, the server holds nothing."""
        self.response_id = None

    def forget_model(self) -> None:
        """After a change of model, its token counts mean nothing to the next one, which estimates anew."""
        self.response_id = None
        self.context_used = self.covered = 0


@dataclass(frozen=True)
class TurnContext:
    """One turn of one session."""

    turn: int
    settings: Settings
    link: ModelLink
    state: SessionState
    progress: Progress
    instructions: str
    emit: Callable[[AgentEvent], None]
    drift: Callable[[], str] | None = None
    """Why another model should take the turn over now, empty while all is well; None: there is none to take over."""
