"""Keys that were set but can have no effect on the model that answers, by name."""

from __future__ import annotations

from collections.abc import Collection

from fulgur.config import keys
from fulgur.config.settings import Settings


def without_effect(settings: Settings, model: str, abilities: Collection[str]) -> list[str]:
    """One warning per key whose `needs` the model lacks; keys at their default get none."""
    warnings = []
    for path in sorted(settings.values):
        key = keys.find(path)
        if key is None or settings.sources[path] == "default" or not key.needs or key.needs in abilities:
            continue
        lacks = _NAMES.get(key.needs, key.needs)
        warnings.append(f"{keys.show(path)} ({settings.sources[path]}) has no effect: {model} has no {lacks}")
    return warnings


_NAMES = {"tools": "tool calls", "verbosity": "verbosity setting"}
