"""Signs that the fast model is out of its depth, from the events of a turn."""

from __future__ import annotations

from collections import Counter

from fulgur.config.settings import Settings
from fulgur.protocol.agent import AgentEvent, FileChanged, GuardReported, ToolFinished, ToolStarted, UsageReported


class Drift:
    """Watches one turn; once a sign appears, `why` says which. A limit of 0 disables its sign."""

    def __init__(self, settings: Settings) -> None:
        self.why = ""
        self._most_guards = settings.integer("router.escalate.guards") or 0
        self._most_edits = settings.integer("router.escalate.edits") or 0
        self._most_repeats = settings.integer("router.escalate.repeats") or 0
        self._most_percent = settings.integer("router.escalate.context_percent") or 0
        self._guards = 0
        self._edits: Counter[str] = Counter()
        self._calls: dict[str, tuple[str, str]] = {}
        self._results: Counter[tuple[str, str, str]] = Counter()

    def watch(self, event: AgentEvent) -> None:
        """Process one event of the turn."""
        match event:
            case GuardReported() if event.problems:
                self._guards += 1
                self._judge(self._guards, self._most_guards, f"the checks failed {self._guards} times")
            case FileChanged():
                self._edits[event.path] += 1
                times = self._edits[event.path]
                self._judge(times, self._most_edits, f"it edited {event.path} {times} times")
            case ToolStarted():
                self._calls[event.call_id] = (event.name, event.arguments)
            case ToolFinished():
                # The same call with the same result makes no progress, unlike polling a job whose output grows.
                same = (*self._calls.pop(event.call_id, (event.name, "")), event.output)
                self._results[same] += 1
                times = self._results[same]
                self._judge(times, self._most_repeats, f"it called {event.name} {times} times with the same result")
            case UsageReported() if event.context_limit:
                percent = int(100 * event.context_used / event.context_limit)
                self._judge(percent, self._most_percent, f"its context is {percent}% full")

    def _judge(self, count: int, most: int, why: str) -> None:
        if most and count >= most and not self.why:
            self.why = why
