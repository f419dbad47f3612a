"""The live area: the growing row, running calls, waiting prompts, an approval, the input, the menu, the status line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from prompt_toolkit.filters import Condition, is_searching
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.layout import ConditionalContainer, Dimension, HSplit, Layout, VerticalAlign, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.styles import Style
from prompt_toolkit.widgets import SearchToolbar

from fulgur.protocol.agent import ApprovalAsked
from fulgur.ui.foreign import one_row, shown
from fulgur.ui.tui.blocks import PLAN_MARKS, TASK_MARKS, count, duration, fits_one_row, task_text
from fulgur.ui.tui.diff import diff_rows
from fulgur.ui.tui.theme import LIVE, colours_wanted
from fulgur.ui.tui.wrap import break_row, cells, shorten

if TYPE_CHECKING:
    from fulgur.ui.tui.app import Tui

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_MENU_ROWS = 6
_TOOL_ROWS = 3
_MEMBER_ROWS = 6
_TASK_ROWS = 6
_WAITING_ROWS = 4
Draw = Callable[[], StyleAndTextTuples]


def always_covers(asked: ApprovalAsked) -> str:
    """What `always` would allow from now on, in a few words."""
    kind, *names = asked.prefix
    if asked.exact:
        return "exactly this"
    if asked.title.startswith("$ "):
        return f"`{one_row(' '.join(asked.prefix))} …`"
    return "this tool" if kind == "mcp" else f"edits of {one_row(', '.join(names))}"


def style() -> Style:
    """The live area's styles; only attributes if colours are not wanted."""
    if colours_wanted():
        return Style.from_dict(LIVE)
    plain = {name: " ".join(w for w in value.split() if w in ("bold", "dim")) for name, value in LIVE.items()}
    return Style.from_dict(plain)


class LiveArea:
    """Draws the state of a Tui."""

    def __init__(self, tui: Tui) -> None:
        self._tui = tui
        self.search = SearchToolbar(text_if_not_searching="", backward_search_prompt="history: ")
        self.input = Window(
            BufferControl(
                tui.draft.buffer, focusable=True, search_buffer_control=self.search.control, preview_search=True
            ),
            wrap_lines=True,
            get_line_prefix=self._prefix,
            height=self._input_height,
            dont_extend_height=True,
        )

    def layout(self) -> Layout:
        """Everything that is not committed yet, from top to bottom."""
        rows = [
            self._part(self._tail, wrap=True),
            Window(height=1, dont_extend_height=True),
            self._part(self._tasks),
            self._part(self._plan),
            self._part(self._members),
            self._part(self._tools),
            self._part(self._waiting),
            self._part(self._approval, wrap=True),
            self._part(self._working),
            self.input,
            ConditionalContainer(self.search, is_searching),
            self._part(self._menu),
            Window(self._control(self._status), height=1, dont_extend_height=True),
        ]
        return Layout(HSplit(rows, align=VerticalAlign.TOP), focused_element=self.input)

    def _part(self, draw: Draw, *, wrap: bool = False) -> ConditionalContainer:
        window = Window(self._control(draw), wrap_lines=wrap, dont_extend_height=True)
        return ConditionalContainer(window, Condition(lambda: bool(draw())))

    def _control(self, draw: Draw) -> FormattedTextControl:
        """The only way into the live area: no drawn character can hide or move the cursor."""
        return FormattedTextControl(lambda: [(part[0], shown(part[1])) for part in draw()])

    def _input_height(self) -> Dimension:
        """As many rows as the draft has, up to a third of the terminal."""
        size = self._tui.screen.frames.get_size()
        width = max(size.columns - 2, 10)
        rows = sum(cells(line) // width + 1 for line in self._tui.draft.text.split("\n"))
        most = max(3, size.rows // 3)
        return Dimension.exact(min(rows, most))

    def _prefix(self, line: int, wrapped: int) -> StyleAndTextTuples:
        if line or wrapped:
            return [("", "  ")]
        if self._tui.approvals.refusing:
            return [("class:bad", self._refusal())]
        return [("class:user", "› ")]

    def _refusal(self) -> str:
        choice = self._tui.approvals.choice
        if choice is None or len(choice.rejected) == len(choice.hunks):
            return "no, because: "
        return f"without {len(choice.rejected)} of {len(choice.hunks)} hunks, because: "

    def _tail(self) -> StyleAndTextTuples:
        tail = self._tui.transcript.tail
        return to_formatted_text(ANSI(tail)) if tail else []

    def _tasks(self) -> StyleAndTextTuples:
        """The running task list: what is under way and what comes next, as far as there is room."""
        told = self._tui.transcript.tasks
        if told is None:
            return []
        width = self._tui.screen.width - 1
        done = sum(task.state == "done" for task in told.tasks)
        rows: StyleAndTextTuples = [("class:dim", f"{done} of {len(told.tasks)} tasks done")]
        rank = {"running": 0, "failed": 1, "open": 2, "done": 3}
        shown_ = sorted(told.tasks, key=lambda task: rank[task.state])[:_TASK_ROWS]
        for task in sorted(shown_, key=lambda task: task.number):
            meaning, mark = TASK_MARKS[task.state]
            rows += [(f"class:{meaning}", f"\n{mark} "), ("", shorten(task_text(task), width - 2))]
        return rows

    def _plan(self) -> StyleAndTextTuples:
        """The model's plan: while it works, the steps around the current one; otherwise how far it has come."""
        steps = self._tui.transcript.plan
        if not steps:
            return []
        done = sum(step.status == "completed" for step in steps)
        at = next((n for n, step in enumerate(steps) if step.status != "completed"), 0)
        width = self._tui.screen.width - 1
        if not self._tui.running:
            line = f"plan: {done} of {len(steps)} done · next: {one_row(steps[at].step)} (/todo shows all)"
            return [("class:dim", shorten(line, width))]
        rows: StyleAndTextTuples = [("class:dim", f"{done} of {len(steps)} steps done")]
        first = max(0, min(at - 1, len(steps) - _TASK_ROWS))
        for step in steps[first : first + _TASK_ROWS]:
            meaning, mark = PLAN_MARKS[step.status]
            rows += [(f"class:{meaning}", f"\n{mark} "), ("", shorten(one_row(step.step), width - 2))]
        left = len(steps) - first - _TASK_ROWS
        return [*rows, ("class:dim", f"\n  and {left} more")] if left > 0 else rows

    def _members(self) -> StyleAndTextTuples:
        """One row per subagent: its name, its model and what it does now."""
        rows: StyleAndTextTuples = []
        width = self._tui.screen.width - 1
        members = self._tui.transcript.members
        for name, member in list(members.items())[:_MEMBER_ROWS]:
            head = f"{name} ({member.model}) {duration(time.monotonic() - member.started)}  "
            doing = shorten(one_row(member.last_line or member.task), max(width - 3 - cells(head), 0))
            rows += [("", "\n" if rows else ""), ("class:accent", f"{self._spin()} "), ("", head), ("class:dim", doing)]
        if len(members) > _MEMBER_ROWS:
            rows.append(("class:dim", f"\n  and {len(members) - _MEMBER_ROWS} more"))
        return rows

    def _tools(self) -> StyleAndTextTuples:
        rows: StyleAndTextTuples = []
        asked = self._tui.approvals.current
        waiting = asked.call_id if asked else ""  # the question says more than the call's own row
        # Subagents have separate rows.
        running = [
            tool
            for call_id, tool in self._tui.transcript.tools.items()
            if call_id != waiting and tool.name != "delegate"
        ]
        width = self._tui.screen.width - 1
        for tool in running[-_TOOL_ROWS:]:
            took = f"  {duration(time.monotonic() - tool.started)}"
            title = shorten(one_row(tool.title), width - 3 - len(took))
            rows += [("", "\n" if rows else ""), ("class:accent", f"{self._spin()} "), ("", title), ("class:dim", took)]
            if line := tool.last_line:
                rows.append(("class:dim", "\n  │ " + shorten(shown(line), width - 4)))
        if len(running) > _TOOL_ROWS:
            rows.append(("class:dim", f"\n  and {len(running) - _TOOL_ROWS} more calls"))
        return rows

    def _waiting(self) -> StyleAndTextTuples:
        """Prompts on their way to the agent, and those queued for after the turn."""
        width = self._tui.screen.width - 1
        prompts = [("class:user", "› ", text) for text in self._tui.outbox.pending]
        queued = [self._tui.expanded.get(text, text) for text in self._tui.outbox.queued]
        prompts += [("class:queued", f"queued {n}: ", text) for n, text in enumerate(queued, 1)]
        rows: StyleAndTextTuples = []
        for colour, mark, text in prompts[:_WAITING_ROWS]:
            short = shorten(shown(text), width - len(mark))
            rows += [("", "\n" if rows else ""), (colour, mark), ("class:dim", short)]
        if len(prompts) > _WAITING_ROWS:
            rows.append(("class:dim", f"\n  and {len(prompts) - _WAITING_ROWS} more"))
        if queued and not self._tui.running:
            rows += self._keys(("Enter", "sends what is queued"), ("Up", "takes the last one back"))
        return rows

    def _approval(self) -> StyleAndTextTuples:
        asked = self._tui.approvals.current
        if asked is None:
            return []
        if self._tui.approvals.choosing:
            return self._hunk()
        title, width = one_row(asked.title), self._tui.screen.width
        whole = fits_one_row(asked.title, width)
        more = "" if whole else "  ↑ all of it is above"
        rows: StyleAndTextTuples = [
            ("class:warn", "? "),
            ("class:strong", title if whole else shorten(title, width - 4 - cells(more))),
            ("class:warn", more),
        ]
        if asked.outside:
            rows.append(("class:bad", "\n  outside the sandbox"))
        # The row above already says the first words of most reasons.
        reason = re.sub(r"^outside the sandbox(; )?", "", asked.reason) if asked.outside else asked.reason
        if reason:
            line = shorten(one_row(reason), 3 * width - 12)
            while split := break_row(line, width - 3):
                rows.append(("class:dim", f"\n  {split[0]}"))
                line = split[1]
            rows.append(("class:dim", f"\n  {line}"))
        if self._tui.approvals.armed and self._tui.draft.text:
            if not self._tui.approvals.refusing:
                rows += self._keys(("Enter", "no, for this reason"), ("Esc", "stop"))
        elif not self._tui.approvals.refusing:
            keys = [("y", "allow once")]
            if asked.prefix:
                keys.append(("a", f"always {always_covers(asked)}"))
            if asked.hunks:
                keys.append(("h", f"choose among {len(asked.hunks)} hunks"))
            rows += self._keys(*keys, ("n", "no, with a reason"), ("Esc", "stop"))
        if self._tui.approvals.stashed:
            rows.append(("class:dim", "\n  your draft comes back after the answer"))
        return rows

    def _hunk(self) -> StyleAndTextTuples:
        """One hunk of the edit in question; the whole edit is above."""
        choice = self._tui.approvals.choice
        assert choice is not None
        most = max(self._tui.screen.frames.get_size().rows // 2, 6)
        diff = diff_rows(choice.hunks[choice.number - 1], names=True)
        rows: StyleAndTextTuples = [
            ("class:warn", "? "),
            ("class:strong", f"hunk {choice.number} of {len(choice.hunks)}"),
        ]
        for row in diff[:most]:
            rows += [("", "\n"), *to_formatted_text(ANSI(row))]
        if len(diff) > most:
            rows.append(("class:dim", f"\n       … {len(diff) - most} more rows are above"))
        rest = (("a", "take the rest"), ("d", "leave out the rest"), ("Esc", "back"))
        return [*rows, *self._keys(("y", "take it"), ("n", "leave it out"), *rest)]

    def _keys(self, *keys: tuple[str, str]) -> StyleAndTextTuples:
        """What each key does, starting on a new row; no entry is broken at the edge."""
        rows: StyleAndTextTuples = []
        left = 0
        for key, what in keys:
            wide = cells(f"{key} {what}")
            if left < wide + 3:
                rows.append(("", "\n  "))
                left = self._tui.screen.width - 3
            else:
                rows.append(("", "   "))
                left -= 3
            rows += [("class:chosen", key), ("", f" {what}")]
            left -= wide
        return rows

    def _working(self) -> StyleAndTextTuples:
        """One row above the input: what goes on and what the keys do, or a notice; empty when idle."""
        tui = self._tui
        if tui.notice:
            return [("class:warn", shorten(f"  {tui.notice}", tui.screen.width - 1))]
        if tui.opening:
            return [("class:accent", f"{self._spin()} "), ("class:dim", "starting: what you type is kept")]
        if tui.outbox.pending and not tui.running:
            return [("class:accent", f"{self._spin()} "), ("class:dim", "waiting for the server")]
        if tui.compacting is not None:
            reads, written = count(tui.compacting.reads_tokens), count(tui.compacting.written_tokens)
            line = f"compacting: {reads} tokens read, {written} written · Esc stops"
            return [("class:accent", f"{self._spin()} "), ("class:dim", shorten(line, tui.screen.width - 3))]
        if tui.place is not None and tui.running:
            about = f", about {duration(tui.place.seconds)}" if tui.place.seconds is not None else ""
            line = f"waiting at the server: place {tui.place.position}{about} · Esc stops"
            return [("class:accent", f"{self._spin()} "), ("class:dim", shorten(line, tui.screen.width - 3))]
        if tui.takes_variant:
            numbers = sorted(variant.number for variant in tui.transcript.variants.variants)  # type: ignore[union-attr]
            which = f"  {numbers[0]}–{numbers[-1]}"
            return [("class:chosen", which), ("", " takes one   "), ("class:chosen", "Esc"), ("", " none")]
        if tui.transcript.tools and not tui.running:
            return [("class:dim", "  Esc stops it")]
        if not tui.running or tui.approvals.current is not None:
            return []
        took = duration(time.monotonic() - (tui.meter.turn_started or time.monotonic()))
        doing = f"checking: {tui.checking}" if tui.checking else "working"
        keys = ["Esc stops", "Enter redirects", "Tab queues"]
        if tui.takes_back:
            keys.append("Up unqueues")
        if tui.outbox.pending and tui.transcript.tools:
            keys = ["your message is sent when the command ends", "Esc stops it"]
        line = shorten(f"{doing} {took}", tui.screen.width - 3)
        for key in keys:  # as many as fit
            if cells(line) + cells(key) + 3 <= tui.screen.width - 3:
                line += f" · {key}"
        return [("class:accent", f"{self._spin()} "), ("class:dim", line)]

    def _spin(self) -> str:
        return _SPINNER[int(time.monotonic() * 10) % len(_SPINNER)]

    def _menu(self) -> StyleAndTextTuples:
        menu = self._tui.draft.menu
        if menu is None:
            return []
        first, choices = menu.window(_MENU_ROWS)
        column = max(cells(choice.text) for choice in choices) + 2
        width = self._tui.screen.width - 1
        rows: StyleAndTextTuples = []
        for number, choice in enumerate(choices, first):
            chosen = number == menu.index
            text = shorten(choice.text, width - 2)
            rows += [("", "\n" if rows else ""), ("class:chosen" if chosen else "", f"{'❯' if chosen else ' '} {text}")]
            room = width - 2 - column
            if choice.note and room > 10:
                rows.append(("class:dim", " " * (column - cells(choice.text)) + shorten(choice.note, room)))
        return rows

    def _status(self) -> StyleAndTextTuples:
        jobs = sum(job.running for job in self._tui.transcript.jobs)
        return list(self._tui.meter.fragments(self._tui.screen.width, self._tui.mode, jobs=jobs))
