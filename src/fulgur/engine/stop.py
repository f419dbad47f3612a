"""Stop strings in a stream of text."""

from __future__ import annotations


class StopStrings:
    """Passes text on, but holds back a possible beginning of a stop string until that is decided."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops))
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that may be shown now, and whether a stop string ended it (the string itself is not shown)."""
        if not text:
            return "", False
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        keep = self._undecided(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """The text that was held back: it did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, text: str) -> int:
        """The length of the longest suffix of `text` that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
