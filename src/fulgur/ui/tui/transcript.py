"""Agent events become rows. Streamed text is gathered here and turned into rows once a frame."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fulgur.protocol import agent as events
from fulgur.ui.foreign import exact, shown, uncoloured
from fulgur.ui.tui import blocks
from fulgur.ui.tui.diff import diff_rows, file_header
from fulgur.ui.tui.prose import Prose
from fulgur.ui.tui.theme import BLANK, Row, paint

REWRITE = "rewrite"  # the call by which an edit model writes; its output streams as an answer does
_DIFF_ROWS = 60
_OUTPUT_KEPT = 2000  # characters of a running call's output, for its live row


@dataclass
class RunningTool:
    """A call under way, shown in the live area."""

    title: str
    name: str
    started: float = field(default_factory=time.monotonic)
    output: str = ""

    @property
    def last_line(self) -> str:
        """The newest line it printed."""
        line = uncoloured(self.output).rstrip().rsplit("\n", 1)[-1]
        return line.rsplit("\r", 1)[-1]  # a progress bar begins again


class Transcript:
    """Rows in the order of the events; `take` hands over the closed ones, `tail` is the row still growing."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.tools: dict[str, RunningTool] = {}
        self._rows: list[Row] = []
        self._prose: Prose | None = None
        self._kind = ""  # what the last rows were, to set different things apart by one empty row
        self._unfed: list[str] = []
        self._way = ""
        self._passed: list[str] = []  # checks that passed, for one row together
        self._unapplied = ""  # a rewrite that no diff has shown yet
        self._asked_diff = ""  # the diff of the last approval

    def take(self) -> list[Row]:
        """The rows closed since the last call."""
        self._feed()
        rows, self._rows = self._rows, []
        return rows

    @property
    def tail(self) -> str:
        """The growing row, painted."""
        return self._prose.tail if self._prose else ""

    def stream(self, kind: str, text: str) -> None:
        """More of the answer (`text`) or of the reasoning (`reasoning`)."""
        if self._kind != kind or self._prose is None:
            if not text.strip():
                return  # models often begin with empty lines
            self._open(kind)
            self._prose = Prose(self.width, "reasoning" if kind == "reasoning" else "")
            text = text.lstrip("\n")
        self._unfed.append(text)

    def add(self, kind: str, rows: list[Row]) -> None:
        """A block of rows; one empty row sets it apart from a block of another kind."""
        self._open(kind)
        self._rows += rows

    def close(self) -> None:
        """Close the row under way: what follows is something else."""
        self._feed()
        if self._prose is not None:
            self._rows += self._prose.finish()
            self._prose = None

    def _open(self, kind: str) -> None:
        self.close()
        self._show_passed()
        if self._kind and (kind != self._kind or kind in ("prompt", "diff", "text")):
            self._rows.append(BLANK)
        self._kind = kind

    def _feed(self) -> None:
        if self._prose is not None:
            self._prose.width = self.width
            self._rows += self._prose.feed("".join(self._unfed))
        self._unfed.clear()

    # ---- events -----------------------------------------------------------------------------------------------

    def on_event(self, event: events.AgentEvent) -> None:
        """Rows for one event; those that concern the live area alone leave none."""
        match event:
            case events.MessageDelta():
                self.stream("text", event.text)
            case events.ThinkingDelta():
                self.stream("reasoning", event.text)
            case events.TurnStarted():
                self.add("prompt", blocks.prompt_rows(event.text, self.width))
                if event.reason and event.reason != self._way:
                    self._way = event.reason
                    self.add("way", blocks.note(event.reason, self.width))
            case events.TurnSteered():
                self._show_unapplied()
                self.add("prompt", blocks.prompt_rows(event.text, self.width))
            case events.ToolStarted():
                self.close()
                self.tools[event.call_id] = RunningTool(event.title, event.name)
            case events.ToolOutput():
                if tool := self.tools.get(event.call_id):
                    tool.output = (tool.output + event.text)[-_OUTPUT_KEPT:]
            case events.ToolFinished():
                done = self.tools.pop(event.call_id, None)
                title = done.title if done else event.name
                rows = blocks.tool_rows(title, event.name, event.ok, event.output, event.seconds, self.width)
                self.add("tool", rows)
                self._unapplied = event.output if event.name == REWRITE else ""
            case events.FileChanged():
                self._unapplied = ""
                header = file_header(event.path, event.kind, event.added, event.removed)
                seen = event.diff in self._asked_diff  # whoever allowed it has just read it
                self.add("diff", [header, *([] if seen else diff_rows(event.diff, limit=_DIFF_ROWS))])
            case events.GuardReported():
                self._guard(event)
            case events.ApprovalAsked():
                # The live area has room for one row of it; nobody should allow what they cannot read.
                if not blocks.fits_one_row(event.title, self.width):
                    self.add("approval", blocks.approval_rows(event.title, self.width))
                if event.diff:
                    self._asked_diff = event.diff
                    self.add("diff", diff_rows(event.diff, names=True))
            case events.ApprovalSettled():
                self._settled(event)
            case events.Warned() if event.quiet:
                self.add("way", blocks.aside(event.message, self.width))
            case events.Warned():
                self.add("problem", blocks.problem(event.message, event.hint, self.width, warning=True))
            case events.Compacted():
                before, after = blocks.count(event.before_tokens), blocks.count(event.after_tokens)
                text = f"compacted: the model sees {after} tokens instead of {before}; the session file keeps all"
                self.add("note", blocks.note(text, self.width))
            case events.Undone():
                self._undone(event)
            case events.TurnStopped():
                self._end()
                self._show_unapplied()
                self.add("end", blocks.note("stopped; what was said is kept", self.width, mark="■", meaning="warn"))
            case events.TurnFailed():
                self._end()
                self._show_unapplied()
                self.add("problem", blocks.problem(event.message, event.hint, self.width))
            case events.TurnDone():
                self._end()

    def _end(self) -> None:
        self.close()
        self._show_passed()
        for tool in self.tools.values():  # cut off in the middle: what they had printed stays
            if tool.name != REWRITE:
                output, seconds = f"{uncoloured(tool.output).rstrip()}\n[stopped]", time.monotonic() - tool.started
                self.add("tool", blocks.tool_rows(tool.title, tool.name, False, output, seconds, self.width))
        self.tools.clear()

    def _show_unapplied(self) -> None:
        """What the model had written when its rewrite was cut off or refused stays readable."""
        if self._unapplied.strip():
            text = shown(self._unapplied).strip("\n")
            self.add("tool", [paint([("dim", f"  │ {line}")]) for line in text.split("\n")])
        self._unapplied = ""

    def _guard(self, event: events.GuardReported) -> None:
        if not event.problems:
            self._passed.append(event.check)
            return
        told = ", given back to the model" if event.fed_back else ""
        self.add("guard", blocks.problem(f"{event.check}{told}", "\n".join(event.problems), self.width, warning=True))

    def _show_passed(self) -> None:
        if self._passed:
            checks, self._passed = ", ".join(self._passed), []
            self.add("guard", [paint([("good", "✓ "), ("dim", f"checked: {checks}")])])

    def _settled(self, event: events.ApprovalSettled) -> None:
        if event.by == "policy" and event.decision in ("once", "always"):
            return
        words = {"once": "allowed once", "always": "allowed from now on", "deny": "not allowed", "stop": "stopped"}
        text = words[event.decision] + ("" if event.by == "user" else f" ({event.by})")
        self.add("approval", blocks.note(text, self.width))

    def _undone(self, event: events.Undone) -> None:
        rows = blocks.note(f"undone: {', '.join(event.paths) or 'no files'}", self.width, mark="↶", meaning="accent")
        if event.kept:
            rows += blocks.note(f"changes made since that turn stay in: {', '.join(event.kept)}", self.width)
        self.add("undo", rows)

    def replay(self, entries: list[events.TranscriptEntry]) -> None:
        """A stored session, as it was said."""
        for entry in entries:
            match entry.kind:
                case "user" | "steer":
                    self.add("prompt", blocks.prompt_rows(entry.text, self.width))
                case "assistant" | "reasoning":
                    self.stream("text" if entry.kind == "assistant" else "reasoning", entry.text)
                    self.close()
                case "diff":
                    self.add("diff", diff_rows(entry.text, limit=_DIFF_ROWS))
                case "tool":
                    self.add("tool", [paint([("dim", f"  {line}")]) for line in exact(entry.text).split("\n")[:3]])
                case _:
                    self.add("note", blocks.note(entry.text, self.width))
