"""How long a replica takes, from measurements: a JSON file with tables and where each came from."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

import msgspec

from fulgur.errors import UsageError

MEASURED = Path(__file__).with_name("service_times.json")
Table = list[tuple[float, float]]


class Beside(msgspec.Struct, forbid_unknown_fields=True):
    """How many times longer each takes while both run."""

    prefill: float
    decode: float


class ServiceTimes(msgspec.Struct, forbid_unknown_fields=True):
    """One model on one kind of machine."""

    prefill: Table  # prompt tokens, seconds
    decode: Table  # sequences, tokens a second of all together
    context_s: float  # added to a step for each token of context of each sequence
    beside: Beside
    kv_tokens: int
    context: int
    sequences: int  # at once
    start_s: float  # until a replica that died is back
    source: dict[str, str]

    def prefill_s(self, cached: float, new: float) -> float:
        """Seconds to compute `new` tokens after `cached` ones."""
        return self.prefill[0][1] + _at(self.prefill, cached + new) - _at(self.prefill, cached)

    def step_s(self, sequences: int, context: float) -> float:
        """Seconds of a step of `sequences` sequences, with `context` tokens of context in all of them together."""
        return _at([(count, count / rate) for count, rate in self.decode], sequences) + self.context_s * context


def load(name: str, file: Path | None = None) -> ServiceTimes:
    path = file or MEASURED
    try:
        known = msgspec.json.decode(path.read_bytes(), type=dict[str, ServiceTimes])
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: {error}", hint=f"{MEASURED} shows what it must hold.") from None
    if name not in known:
        raise UsageError(f"{path} has no '{name}'", hint=f"It has: {', '.join(known)}")
    return known[name]


def _at(table: Table, x: float) -> float:
    """Interpolate between the points, and extrapolate beyond the last one."""
    place = min(max(bisect_right(table, (x, float("inf"))), 1), len(table) - 1)
    (x0, y0), (x1, y1) = table[place - 1], table[place]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
