"""The status line: the model that really answers, its speed while it writes, the context and the cost."""

from __future__ import annotations

import time

from fulgur.protocol.agent import UsageReported
from fulgur.ui.tui.blocks import count, duration
from fulgur.ui.tui.wrap import cells

_LONG_DELTA = 12  # characters; a provider with longer deltas sends several tokens in one
_CHARACTERS_PER_TOKEN = 4
_SETTLE_SECONDS = 0.15  # below this a rate would be noise

Fragment = tuple[str, str]


class Meter:
    """Counts streamed tokens. The model's own report replaces the counts when it arrives."""

    def __init__(self) -> None:
        self.model = ""
        self.asked = ""  # the model asked for
        self.answered = False  # `model` is the one named in a response
        self.context_used = self.context_limit = 0
        self.cost: float | None = None
        self.copies = False
        self._unit = "tok/s"
        self.turn_tokens = 0
        self._turn_seconds = 0.0  # spent writing, by the reported rates
        self._turn_drafted = self._turn_accepted = 0
        self.turn_started: float | None = None
        self.last: UsageReported | None = None
        self._deltas = self._characters = 0
        self._asked = self._first = self._latest = 0.0

    def start_turn(self, *, copies: bool = False) -> None:
        """Start counting a turn. With `copies`, the text being edited is the draft, so most tokens may be copied from
        it."""
        self.copies = copies
        self._unit = "tok/s with copied text" if copies else "tok/s"
        self.turn_started = time.monotonic()
        self.turn_tokens, self._turn_seconds = 0, 0.0
        self._turn_drafted = self._turn_accepted = 0
        self.last = None
        self.next_answer()

    def end_turn(self) -> float | None:
        """End the turn; return how long it took, or None if it never began."""
        seconds = time.monotonic() - self.turn_started if self.turn_started else None
        self.turn_started = None
        return seconds

    def delta(self, text: str) -> None:
        """Count a piece of an answer."""
        self._latest = time.monotonic()
        if not self._deltas:
            self._first = self._latest
        self._deltas += 1
        self._characters += len(text)

    def report(self, usage: UsageReported) -> None:
        """Add the provider's numbers of one answer."""
        self.last = usage
        self.turn_tokens += usage.output_tokens
        self._turn_drafted += usage.draft_tokens
        self._turn_accepted += usage.accepted_tokens
        if usage.tokens_per_second > 0:
            self._turn_seconds += usage.output_tokens / usage.tokens_per_second
        if usage.model:
            self.model, self.answered = usage.model, True
        self.context_used, self.context_limit = usage.context_used, usage.context_limit or self.context_limit
        if usage.cost is not None:
            self.cost = (self.cost or 0.0) + usage.cost
        self.next_answer()

    def ask_for(self, model: str, context_limit: int = 0) -> None:
        """Show that another model will answer from here on."""
        self.asked = self.model = model
        self.answered = False
        self.context_limit = context_limit or self.context_limit

    def context(self, used: int, limit: int) -> None:
        """Set how full the context is by the agent's count, which includes resumed sessions and answers cut off."""
        self.context_used, self.context_limit = used, limit or self.context_limit

    def summary(self, seconds: float) -> str:
        """The line at the end of a turn; its rate covers all answers of the turn."""
        parts = [f"{count(self.turn_tokens)} tokens"] if self.turn_tokens else []
        if self._turn_seconds:
            rate = f"{self.turn_tokens / self._turn_seconds:,.0f} {self._unit}"
            if self._turn_drafted:
                own = (self.turn_tokens - self._turn_accepted) / self._turn_seconds
                rate += f", {own:,.0f} without{'' if self.copies else ' drafts'}"
            parts.append(rate)
        return " · ".join([*parts, duration(seconds)])

    def _model(self) -> Fragment:
        if not self.answered:
            return "", self.model or "no model yet"
        if self.asked and not self.model.startswith(self.asked):
            return "class:warn", f"{self.model}, not {self.asked}"
        return "class:strong", self.model

    def next_answer(self) -> None:
        """Start timing the first token of the next answer."""
        self._deltas = self._characters = 0
        self._asked = time.monotonic()

    def rate(self) -> tuple[float, bool] | None:
        """Tokens a second, and whether they were counted here (True) or reported by the server (False)."""
        elapsed = self._latest - self._first
        if self._deltas > 1 and elapsed > _SETTLE_SECONDS:
            long = self._characters / self._deltas > _LONG_DELTA
            tokens = self._characters / _CHARACTERS_PER_TOKEN if long else self._deltas - 1
            return tokens / elapsed, True
        # A failed answer has no rate.
        return (self.last.tokens_per_second, False) if self.last and self.last.tokens_per_second else None

    def first_token(self) -> float | None:
        """Seconds to the first token of the current answer, else of the last one."""
        if self._deltas:
            return self._first - self._asked
        return self.last.ttft_seconds if self.last and self.last.output_tokens else None

    def fragments(self, width: int, extra: str = "", *, jobs: int = 0) -> list[Fragment]:
        """As much of the line as fits; `jobs` run in the background."""
        parts: list[Fragment] = [self._model()]
        if jobs:
            parts.append(("class:warn", f"{jobs} job{'s' * (jobs > 1)}"))
        if rate := self.rate():
            parts.append(("class:accent", f"{'~' if rate[1] else ''}{rate[0]:,.0f} {self._unit}"))
        first = self.first_token()
        if first is not None:
            parts.append(("class:dim", f"first {duration(first)}"))
        if self.context_limit:
            share = 100 * self.context_used / self.context_limit
            style = "class:warn" if share >= 80 else "class:dim"
            percent = "<1%" if 0 < share < 1 else f"{share:.0f}%"
            parts.append((style, f"ctx {count(self.context_used)}/{count(self.context_limit)} {percent}"))
        if self.cost is not None:
            parts.append(("class:dim", f"${self.cost:.4f}" if self.cost < 1 else f"${self.cost:.2f}"))
        if extra:
            parts.append(("class:dim", extra))
        line: list[Fragment] = [("", "  ")]
        used = 2
        for part in parts:
            needed = cells(part[1]) + (3 if used > 2 else 0)
            if used + needed > width - 1:
                continue  # a shorter part after it may still fit
            line += [("class:dim", " · "), part] if used > 2 else [part]
            used += needed
        return line
