"""`/status`: which model really answers, and how everything is set."""

from __future__ import annotations

from fulgur.agent.loop.commands import remembered
from fulgur.agent.loop.context import Progress
from fulgur.agent.loop.prompt import find_rules
from fulgur.agent.route.models import ModelLink
from fulgur.agent.route.router import route
from fulgur.agent.session.state import SessionState
from fulgur.agent.workbench import Workbench
from fulgur.config.settings import Settings
from fulgur.config.toml_text import value_text
from fulgur.protocol.session import Status
from fulgur.sandbox.choose import describe


def status_of(
    settings: Settings,
    link: ModelLink,
    state: SessionState,
    progress: Progress,
    bench: Workbench,
    warnings: list[str],
    running: bool,
) -> Status:
    """Collect everything that /status shows."""
    way, reason = route(link.info, settings)
    return Status(
        session_id=state.log.id,
        session_path=str(state.log.path),
        workspace=str(settings.workspace),
        model=link.info.name,
        answering_model=progress.answering_model,
        provider=link.settings.provider.name,
        base_url=link.base_url,
        way=way,
        way_reason=reason,
        abilities=tuple(sorted(link.info.abilities)),
        fast=settings.text("service_tier") == "fast",
        turns=len(state.turns),
        running=running,
        queued=len(state.queued),
        context_used=progress.context_used,
        context_limit=link.info.context,
        sandbox=describe(bench.policy, bench.withheld),
        approval_policy=settings.approval_policy,
        remembered=remembered(settings),
        rules=tuple(str(rule.path) for rule in find_rules(settings)),
        config=tuple((key, value_text(value), source) for key, value, source in settings.effective()),
        warnings=tuple(warnings),
        cost=progress.cost,
    )
