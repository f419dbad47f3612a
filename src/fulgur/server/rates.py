"""Limits on requests and tokens: what remains, when it is refilled, and the headers and events that say so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from fulgur.protocol.errors import ApiError

MINUTE = 60.0
DAY = 86_400.0
Clock = Callable[[], float]


class Bucket:
    """An amount per period, refilled evenly. A cost known only afterwards may take it below zero: that is owed."""

    def __init__(self, most: float, seconds: float = MINUTE, clock: Clock = time.monotonic) -> None:
        self.most = most
        self.seconds = seconds
        self._left = most
        self._at = clock()
        self._clock = clock

    def left(self) -> float:
        now = self._clock()
        self._left = min(self.most, self._left + (now - self._at) * self.most / self.seconds)
        self._at = now
        return self._left

    def take(self, amount: float) -> None:
        self._left = self.left() - amount

    def set(self, left: float) -> None:
        """Set what is left now, as counted elsewhere."""
        self._left, self._at = left, self._clock()

    def wait(self, amount: float) -> float:
        """Seconds until `amount` is available."""
        return max(0.0, amount - self.left()) * self.seconds / self.most

    def used_percent(self) -> float:
        return round(min(100.0, max(0.0, 100 * (1 - self.left() / self.most))), 1)


class Rates:
    """The limits of one pool, tier or key. A limit of 0 is none."""

    def __init__(
        self,
        name: str,
        requests_per_minute: int = 0,
        tokens_per_minute: int = 0,
        tokens_per_day: int = 0,
        clock: Clock = time.monotonic,
    ) -> None:
        self.name = name
        self.requests = Bucket(requests_per_minute, MINUTE, clock) if requests_per_minute else None
        self.tokens = Bucket(tokens_per_minute, MINUTE, clock) if tokens_per_minute else None
        self.day = Bucket(tokens_per_day, DAY, clock) if tokens_per_day else None

    def buckets(self) -> dict[str, Bucket]:
        """The buckets by what they count: `requests`, `tokens`, `day`."""
        found = {"requests": self.requests, "tokens": self.tokens, "day": self.day}
        return {kind: bucket for kind, bucket in found.items() if bucket is not None}

    def check(self) -> None:
        """A 429 with the time to wait when a limit is used up."""
        for kind, bucket in self.buckets().items():
            if bucket.wait(1) > 0:
                raise self.over(kind)

    def request(self, times: int = 1) -> None:
        if self.requests is not None:
            self.requests.take(times)

    def spend(self, tokens: int) -> None:
        """Count the tokens of an answer when it has ended, however long it took."""
        for bucket in (self.tokens, self.day):
            if bucket is not None:
                bucket.take(tokens)

    def over(self, kind: str) -> ApiError:
        """The error that says that this limit is used up."""
        code = "usage_limit_reached" if kind == "day" else "rate_limit_exceeded"
        what = {"requests": "requests per minute", "tokens": "tokens per minute", "day": "tokens per day"}[kind]
        wait = max(0.1, self.buckets()[kind].wait(1))
        message = f"{self.name} has reached its limit of {what}. Please try again in {wait:.1f}s."
        headers = {"retry-after": str(int(wait + 0.999)), "retry-after-ms": str(int(wait * 1000)), **headers_of([self])}
        return ApiError(429, code, message, type="rate_limit_error", headers=headers)


def headers_of(rates: Iterable[Rates]) -> dict[str, str]:
    """OpenAI's headers and Codex's meters; of several limits, the one that is used up most."""
    found = list(rates)
    headers: dict[str, str] = {}
    for kind in ("requests", "tokens"):
        bucket = _tightest([getattr(each, kind) for each in found])
        if bucket is not None:
            headers[f"x-ratelimit-limit-{kind}"] = f"{bucket.most:.0f}"
            headers[f"x-ratelimit-remaining-{kind}"] = f"{max(0, int(bucket.left() + 1e-6))}"
            headers[f"x-ratelimit-reset-{kind}"] = _span(bucket.wait(bucket.most))
    for name, meter in (meters_of(found) or {}).items():
        headers[f"x-codex-{name}-used-percent"] = f"{meter['used_percent']:g}"
        headers[f"x-codex-{name}-window-minutes"] = f"{meter['window_minutes']}"
        headers[f"x-codex-{name}-reset-at"] = f"{meter['reset_at']}"
    return headers


def meters_of(rates: Iterable[Rates]) -> dict[str, dict[str, Any]] | None:
    """Codex's two meters: the minute (`primary`) and the day (`secondary`); None when nothing is limited."""
    found = list(rates)
    minute = _tightest([bucket for each in found for bucket in (each.requests, each.tokens)])
    day = _tightest([each.day for each in found])
    shown = {"primary": minute, "secondary": day}
    return {name: _meter(bucket) for name, bucket in shown.items() if bucket is not None} or None


def _meter(bucket: Bucket) -> dict[str, Any]:
    reset = time.time() + bucket.wait(bucket.most)
    minutes = int(bucket.seconds // MINUTE)
    return {"used_percent": bucket.used_percent(), "window_minutes": minutes, "reset_at": int(reset + 0.5)}


def _tightest(buckets: list[Bucket | None]) -> Bucket | None:
    return max((bucket for bucket in buckets if bucket is not None), key=Bucket.used_percent, default=None)


def _span(seconds: float) -> str:
    """As OpenAI writes it: 120ms, 8.64s, 1m30s."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{rest:.3g}s"
