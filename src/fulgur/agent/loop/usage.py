"""The usage numbers of one answer, for the screen, `exec` and the session log."""

from __future__ import annotations

import time

from fulgur.agent.loop.context import TurnContext
from fulgur.agent.route.models import ModelInfo
from fulgur.protocol.agent import UsageReported, Warned
from fulgur.protocol.response import Response, ResponseUsage


def tell_tier(context: TurnContext, response: Response) -> None:
    """Warn once that the fast tier was requested and another one answered."""
    wanted, given, progress = context.settings.text("service_tier"), response.service_tier, context.progress
    if wanted == "fast" and given not in ("fast", "priority", None) and not progress.tier_told:
        progress.tier_told = True
        context.emit(Warned(message=f"the server has no fast tier: it answered in the tier {given}"))


def usage_event(
    turn: int, model: str, usage: ResponseUsage, info: ModelInfo, began: float, first: float
) -> UsageReported:
    """Compute the numbers. `began` and `first` are when the request was sent and when its first token came (0: none
    did)."""
    now = time.perf_counter()
    cached, details = usage.input_tokens_details.cached_tokens, usage.output_tokens_details
    ours = info.cost(usage.input_tokens, cached, usage.output_tokens)
    said = usage.cost if isinstance(usage.cost, float) else None
    accepted = details.accepted_prediction_tokens or 0
    seconds, later = now - first if first else 0.0, usage.output_tokens - 1
    return UsageReported(
        turn=turn,
        model=model,
        input_tokens=usage.input_tokens,
        cached_tokens=cached,
        output_tokens=usage.output_tokens,
        tokens_per_second=round(later / seconds, 1) if seconds > 0 and later > 0 else 0.0,
        ttft_seconds=round((first or now) - began, 4),
        context_used=usage.input_tokens + usage.output_tokens,
        context_limit=info.context,
        cost=ours if ours is not None else said,
        draft_tokens=accepted + (details.rejected_prediction_tokens or 0),
        accepted_tokens=accepted,
        raw_tokens_per_second=round(max(later - accepted, 0) / seconds, 1) if seconds > 0 else 0.0,
    )
