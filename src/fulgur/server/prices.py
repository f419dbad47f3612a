"""What a response cost."""

from __future__ import annotations

from fulgur.server.config import Price
from fulgur.text.parts import Usage


def cost(price: Price | None, usage: Usage) -> float | None:
    """In the currency of the price table; None when the model has no price."""
    if price is None:
        return None
    cached = min(usage.cached_tokens, usage.input_tokens)
    cached_price = price.input if price.cached_input is None else price.cached_input
    total = (usage.input_tokens - cached) * price.input + cached * cached_price + usage.output_tokens * price.output
    return round(total / 1e6, 9)
