"""What a session reports when it is opened or resumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fulgur.agent.session.state import SessionState
from fulgur.errors import FulgurError
from fulgur.protocol.agent import AgentEvent, PlanChanged, QueueChanged, SessionStarted, Warned


def opening_events(
    state: SessionState,
    model: str,
    warnings: Sequence[str],
    limits: str | None,
    refusal: FulgurError | None,
    recovered: Sequence[str],
) -> Iterator[AgentEvent]:
    """Yield that it is ready, the warnings (quiet for what the sandbox lacks), and the prompts still queued."""
    log = state.log
    yield SessionStarted(session_id=log.id, path=str(log.path), model=model, resumed_turns=len(state.turns))
    for warning in warnings:
        yield Warned(message=warning, quiet=warning == limits)
    if refusal is not None:
        yield Warned(message=refusal.message, hint=refusal.hint or "")
    if recovered:
        yield Warned(message=f"rolled back an interrupted patch: {', '.join(recovered)}")
    if state.interrupted:
        yield Warned(message="the last turn was interrupted; its text so far is kept")
    if state.plan:
        yield PlanChanged(turn=len(state.turns), steps=state.plan)
    if state.queued:
        yield QueueChanged(prompts=tuple(state.queued))
