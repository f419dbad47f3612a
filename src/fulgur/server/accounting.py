"""What a response used: its usage object, its cost, and the numbers for `/metrics`."""

from __future__ import annotations

import time
from dataclasses import fields, replace

from fulgur.protocol import response as shape
from fulgur.server.config import Price
from fulgur.server.metrics import Metrics
from fulgur.server.registry import ServedModel
from fulgur.text.parts import Usage


def usage_object(usage: Usage, price: Price | None) -> shape.ResponseUsage:
    result = shape.ResponseUsage(
        input_tokens=usage.input_tokens,
        input_tokens_details=shape.InputTokensDetails(
            usage.cached_tokens, max(0, usage.input_tokens - usage.cached_tokens)
        ),
        output_tokens=usage.output_tokens,
        output_tokens_details=shape.OutputTokensDetails(usage.reasoning_tokens, *_drafts(usage)),
        total_tokens=usage.input_tokens + usage.output_tokens,
    )
    paid = cost(price, usage)
    if paid is not None:
        result.cost = paid
    if usage.seconds:
        result.seconds = round(usage.seconds, 6)
    return result


def measure(metrics: Metrics, entry: ServedModel, usage: Usage, started: float, first: float | None) -> None:
    """How fast a response was; `started` and `first` (its first output) are on the performance counter."""
    if first is None:
        return
    metrics.observe("fulgur_first_token_seconds", first - started, model=entry.name)
    seconds = time.perf_counter() - first
    if usage.output_tokens > 1 and seconds > 0:
        metrics.observe("fulgur_tokens_per_second", (usage.output_tokens - 1) / seconds, model=entry.name)


def _drafts(usage: Usage) -> tuple[int, ...]:
    return (usage.accepted_tokens, usage.draft_tokens - usage.accepted_tokens) if usage.draft_tokens else ()


def at_tier(price: Price | None, times: float) -> Price | None:
    """The model's price in a tier that costs `times` as much."""
    if price is None or times == 1:
        return price
    cached = None if price.cached_input is None else price.cached_input * times
    return Price(price.input * times, price.output * times, cached)


def added(first: Usage, then: Usage) -> Usage:
    """The usage of two answers together."""
    return Usage(**{each.name: getattr(first, each.name) + getattr(then, each.name) for each in fields(Usage)})


def continued(first: Usage, then: Usage) -> Usage:
    """The usage of an answer that was cut and resumed: its input counts once, the output of both parts counts."""
    return replace(
        first,
        output_tokens=first.output_tokens + then.output_tokens,
        reasoning_tokens=first.reasoning_tokens + then.reasoning_tokens,
        draft_tokens=first.draft_tokens + then.draft_tokens,
        accepted_tokens=first.accepted_tokens + then.accepted_tokens,
        seconds=first.seconds + then.seconds,
    )


def cost(price: Price | None, usage: Usage) -> float | None:
    """The cost, in the currency of the price table; None when the model has no price."""
    if price is None:
        return None
    cached = min(usage.cached_tokens, usage.input_tokens)
    cached_price = price.input if price.cached_input is None else price.cached_input
    total = (usage.input_tokens - cached) * price.input + cached * cached_price + usage.output_tokens * price.output
    return round(total / 1e6, 9)
