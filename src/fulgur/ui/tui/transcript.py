"""Turns agent events into rows. Streamed text is gathered here and turned into rows once per frame."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fulgur.edit.checks import TESTS
from fulgur.protocol import agent as events
from fulgur.protocol.session import TranscriptEntry
from fulgur.ui.foreign import one_row, shown, uncoloured
from fulgur.ui.tui import blocks
from fulgur.ui.tui.blocks import REWRITE
from fulgur.ui.tui.diff import diff_rows, file_header
from fulgur.ui.tui.prose import Prose
from fulgur.ui.tui.theme import BLANK, Row, Span, paint
from fulgur.ui.tui.variants import variant_rows
from fulgur.ui.tui.wrap import shorten

_DIFF_ROWS = 60
_OUTPUT_KEPT = 2000  # characters of a running call's output, for its live row


@dataclass
class RunningTool:
    """A running call, shown in the live area."""

    title: str
    name: str
    started: float = field(default_factory=time.monotonic)
    output: str = ""

    @property
    def last_line(self) -> str:
        """The newest line of its output."""
        line = uncoloured(self.output).rstrip().rsplit("\n", 1)[-1]
        return line.rsplit("\r", 1)[-1]  # a progress bar overwrites its line


@dataclass
class RunningMember:
    """A running subagent, shown in the live area."""

    model: str
    task: str
    started: float = field(default_factory=time.monotonic)
    doing: str = ""

    def told(self, kind: str, text: str) -> None:
        """Note what it does now; text is shown by its last line."""
        doing = self.doing + text if kind == "text" else f"{text}\n"
        self.doing = doing[-_OUTPUT_KEPT:]

    @property
    def last_line(self) -> str:
        return uncoloured(self.doing).rstrip().rsplit("\n", 1)[-1]


class Transcript:
    """Rows in the order of the events; `take` returns the closed ones, `tail` is the row that still grows."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.tools: dict[str, RunningTool] = {}
        self.members: dict[str, RunningMember] = {}
        self.tasks: events.TasksChanged | None = None  # the running list
        self.variants: events.VariantsRanked | None = None  # those to choose from
        self.jobs: tuple[events.JobState, ...] = ()  # background commands
        self.plan: tuple[events.PlanStep, ...] = ()  # the model's plan, until its last step is done
        self._rows: list[Row] = []
        self._prose: Prose | None = None
        self._kind = ""  # the kind of the last rows; an empty row separates different kinds
        self._unfed: list[str] = []
        self.way = ""  # how turns are worked, as last shown
        self._checks: list[events.GuardReported] = []  # reports to show together in one row
        self._latest: dict[str, events.GuardReported] = {}  # the last report of each check in this turn
        self._unapplied = ""  # a rewrite that no diff has shown yet
        self._asked_diff = ""  # the diff of the last approval
        self._asked: dict[str, str] = {}  # titles of the open questions

    def take(self) -> list[Row]:
        """Return the rows closed since the last call."""
        self._feed()
        rows, self._rows = self._rows, []
        return rows

    @property
    def tail(self) -> str:
        """The growing row, painted."""
        return self._prose.tail if self._prose else ""

    def stream(self, kind: str, text: str) -> None:
        """Add to the answer (`text`) or to the reasoning (`reasoning`)."""
        if self._kind != kind or self._prose is None:
            if not text.strip():
                return  # models often begin with empty lines
            self._open(kind)
            self._prose = Prose(self.width, "reasoning" if kind == "reasoning" else "")
            text = text.lstrip("\n")
        self._unfed.append(text)

    def add(self, kind: str, rows: list[Row]) -> None:
        """Add a block of rows; one empty row separates it from a block of another kind."""
        self._open(kind)
        self._rows += rows

    def close(self) -> None:
        """Close the growing row: something else follows."""
        self._feed()
        if self._prose is not None:
            self._rows += self._prose.finish()
            self._prose = None

    def _open(self, kind: str) -> None:
        self.close()
        self._show_checks()
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
        """Add the rows for one event; events that concern only the live area add none."""
        match event:
            case events.MessageDelta():
                self.stream("text", event.text)
            case events.ThinkingDelta():
                self.stream("reasoning", event.text)
            case events.TurnStarted():
                self.variants = None
                self.add("prompt", blocks.prompt_rows(event.text, self.width))
                if event.reason and event.reason != self.way:
                    self.way = event.reason
                    self.add("way", blocks.note(event.reason, self.width))
            case events.ImagesSent():
                self.add("way", blocks.note(f"sent with the prompt: {', '.join(event.names)}", self.width))
            case events.Routed():
                self._show_unapplied()
                text = f"{event.side}: {event.model}, {event.why}"
                other = "deep" if event.side == "fast" else "fast"
                hint = f" · Ctrl-T gives it to {event.other} ({other})"
                self.add("way", blocks.note(text + hint, self.width, mark="→", meaning="accent"))
            case events.RouteCosts() if len(event.parts) > 1:  # with one model, the line at the end says it
                self.add("way", blocks.note(blocks.costs(event.parts), self.width))
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
                seen = event.diff in self._asked_diff  # the person who allowed it has just read it
                self.add("diff", [header, *([] if seen else diff_rows(event.diff, limit=_DIFF_ROWS))])
            case events.GuardReported():
                self._guard(event)
            case events.ApprovalAsked():
                self._asked[event.approval_id] = event.title
                # The live area has room for only one row of it, and nobody should allow what they cannot read.
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
            case events.MemberStarted():
                self.members[event.member] = RunningMember(event.model, event.task)
            case events.MemberTold():
                self._member_told(event)
            case events.MemberFinished():
                self.members.pop(event.member, None)
                self.add("tool", blocks.member_rows(event, self.width))
            case events.SessionStarted():
                self.plan = ()
            case events.JobsChanged():
                self._jobs(event.jobs)
            case events.PlanChanged():
                self._planned(event.steps)
            case events.TasksChanged():
                self.tasks = event
            case events.VariantsRanked():
                self.variants = event if any(variant.diff for variant in event.variants) else None
                if event.variants:
                    self.add("variant", variant_rows(event.variants, self.width))
            case events.Undone():
                self._undone(event)
            case events.TurnStopped():
                self._end()
                self._show_unapplied()
                self.add("end", blocks.note("stopped; the answer so far is kept", self.width, mark="■", meaning="warn"))
            case events.TurnFailed():
                self._end()
                self._show_unapplied()
                self.add("problem", blocks.problem(event.message, event.hint, self.width))
            case events.TurnDone():
                self._end()

    def _member_told(self, event: events.MemberTold) -> None:
        if member := self.members.get(event.member):
            member.told(event.kind, event.text)
        if event.kind == "steered":
            self.add("prompt", blocks.prompt_rows(f"{event.member}: {event.text}", self.width))
        elif event.kind in ("check", "warning"):
            self.add("problem", blocks.problem(f"{event.member}: {event.text}", "", self.width, warning=True))

    def _jobs(self, jobs: tuple[events.JobState, ...]) -> None:
        ran = {job.name for job in self.jobs if job.running}
        self.jobs = jobs
        for job in jobs:
            if job.name in ran and not job.running:
                how = "was ended" if job.exit_code is None else f"ended with exit code {job.exit_code}"
                text = f"{job.name} {how}: {job.command} (/jobs {job.name} shows its output)"
                self.add("job", blocks.note(text, self.width))

    def _planned(self, steps: tuple[events.PlanStep, ...]) -> None:
        self.plan = steps
        if all(step.status == "completed" for step in steps):
            self.plan = ()
            self.add("plan", blocks.plan_rows(steps, self.width))

    def _end(self) -> None:
        self.close()
        self._show_checks()
        self._latest.clear()
        self.members.clear()
        if self.tasks is not None:
            self.add("tasks", blocks.task_rows(self.tasks.tasks, self.width))
            self.tasks = None
        for tool in self.tools.values():  # cut off in the middle: keep what they had printed
            if tool.name != REWRITE:
                output, seconds = f"{uncoloured(tool.output).rstrip()}\n[stopped]", time.monotonic() - tool.started
                self.add("tool", blocks.tool_rows(tool.title, tool.name, False, output, seconds, self.width))
        self.tools.clear()

    def _show_unapplied(self) -> None:
        """Keep what the model had written readable after its rewrite was cut off or refused."""
        if self._unapplied.strip():
            text = shown(self._unapplied).strip("\n")
            self.add("tool", [paint([("dim", f"  │ {line}")]) for line in text.split("\n")])
        self._unapplied = ""

    def _guard(self, event: events.GuardReported) -> None:
        self._checks.append(event)
        if event.problems:
            told = ", given back to the model" if event.fed_back else ""
            text = "\n".join(event.problems)
            self.add("guard", blocks.problem(f"{event.check}{told}", text, self.width, warning=True))

    def _show_checks(self) -> None:
        """Show one row for the checks since the last: ✓ if the tests ran and everything holds."""
        checks, self._checks = self._checks, []
        self._latest |= {event.check: event for event in checks}
        passed = [event.check for event in checks if not event.problems and not event.unchecked]
        unchecked = [event.unchecked for event in checks if event.unchecked]
        if passed or unchecked:
            holds = TESTS in passed and not any(event.problems or event.unchecked for event in self._latest.values())
            mark: Span = ("good", "✓ ") if holds else ("dim", "· ")
            text = " · ".join([f"checked: {', '.join(passed)}"] * bool(passed) + unchecked)
            self.add("guard", blocks.wrapped(text, self.width, first=[mark], indent=2, meaning="dim"))

    def _settled(self, event: events.ApprovalSettled) -> None:
        if event.by == "policy" and event.decision in ("once", "always"):
            return
        words = {"once": "allowed once", "always": "allowed from now on", "deny": "not allowed", "stop": "stopped"}
        left_out = f", without {len(event.rejected)} of its hunks" if event.rejected else ""
        text = words[event.decision] + left_out + ("" if event.by == "user" else f" ({event.by})")
        if about := one_row(self._asked.pop(event.approval_id, "")):
            text = shorten(f"{text}: {about}", self.width - 3)
        self.add("approval", blocks.note(text, self.width))

    def _undone(self, event: events.Undone) -> None:
        rows = blocks.note(f"undone: {', '.join(event.paths) or 'no files'}", self.width, mark="↶", meaning="accent")
        if event.kept:
            rows += blocks.note(f"changes made since that turn stay in: {', '.join(event.kept)}", self.width)
        self.add("undo", rows)

    def replay(self, entries: list[TranscriptEntry]) -> None:
        """Add the rows of a stored session."""
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
                    self.add("tool", [paint([("dim", shorten(f"  {one_row(entry.text)}", self.width - 1))])])
                case _:
                    self.add("note", blocks.note(entry.text, self.width))
