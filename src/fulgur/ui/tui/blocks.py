"""The rows of everything but streamed text: prompts, tool calls, guards, errors, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fulgur.protocol.agent import MemberFinished, PlanStep, RouteCost, TaskState
from fulgur.ui.foreign import exact, one_row, shown
from fulgur.ui.tui.diff import diff_rows
from fulgur.ui.tui.theme import Row, Span, paint
from fulgur.ui.tui.wrap import break_row, cells, cut, shorten

# Calls whose output a person seldom needs: the model reads it, the screen shows only the title.
QUIET_TOOLS = frozenset({"read", "search", "list", "apply_patch", "edit", "rewrite", "update_plan", "skill"})
REWRITE = "rewrite"  # the call by which an edit model writes; its output streams like an answer
_NOTHING = ("", "[no output]")
_PREVIEW_HEAD, _PREVIEW_TAIL = 2, 4
_NARROW = 24  # columns of a table's second column below which values go under their names
_CONFLICT_ROWS = 40  # of the diff that a subagent's end shows


def wrapped(text: str, width: int, *, first: Sequence[Span] = (), indent: int = 0, meaning: str = "") -> list[Row]:
    """Fold paragraphs at spaces, with `first` before the first row and an indent before the others."""
    rows: list[Row] = []
    lead: Sequence[Span] = first
    for line in shown(text).split("\n"):
        while split := break_row(line, max(width - indent, 10)):
            rows.append(paint([*lead, (meaning, split[0])]))
            line, lead = split[1], [("", " " * indent)]
        rows.append(paint([*lead, (meaning, line)]))
        lead = [("", " " * indent)]
    return rows


def prompt_rows(text: str, width: int) -> list[Row]:
    """The person's prompt."""
    return wrapped(text, width, first=[("user", "› ")], indent=2, meaning="bold")


def fits_one_row(title: str, width: int) -> bool:
    """Whether the live area can show the whole title of a question."""
    return "\n" not in title and cells(one_row(title)) <= width - 4


def approval_rows(title: str, width: int) -> list[Row]:
    """Show all of what a question is about, to the character: `⏎` begins a line, `…` continues one. No row ends in a
    space, so that none can hide at the edge."""
    rows: list[Row] = []
    mark = "? "
    for line in exact(title).split("\n"):
        while True:
            end = cut(line, max(width - 3, 10))
            while end < len(line) and line[end - 1] == " ":
                end -= 1
            rows.append(paint([("warn", mark), ("", line[:end])]))
            line, mark = line[end:], "… "
            if not line:
                break
        mark = "⏎ "
    return rows


def note(text: str, width: int, *, mark: str = "·", meaning: str = "dim") -> list[Row]:
    """A remark by the program."""
    return wrapped(text, width, first=[(meaning, f"{mark} ")], indent=2, meaning=meaning)


def aside(text: str, width: int) -> list[Row]:
    """A minor remark in one row: its first words. /status has the rest."""
    where = "  (/status)"
    room = width - 3 - len(where)
    short = one_row(text).partition(": ")[0]
    if cells(short) > room:
        short = short.partition(", ")[0]
    return [paint([("dim", f"· {shorten(short, room)}{where}")])]


def problem(message: str, hint: str, width: int, *, warning: bool = False) -> list[Row]:
    """An error or a warning, and what to do about it."""
    colour = "warn" if warning else "bad"
    rows = wrapped(message, width, first=[(colour, "! " if warning else "✗ ")], indent=2, meaning=colour)
    return rows + (wrapped(hint, width, first=[("", "  ")], indent=2, meaning="dim") if hint else [])


def tool_rows(title: str, name: str, ok: bool, output: str, seconds: float, width: int) -> list[Row]:
    """A finished call: its title, how it ended, and a few lines of its output."""
    mark: Span = ("good", "✓") if ok else ("bad", "✗")
    took = f"  {duration(seconds)}" if seconds >= 0.05 else ""
    head = shorten(one_row(title), width - 4 - len(took))
    rows = [paint([mark, ("", " "), ("", head), ("dim", took)])]
    if (ok and name in QUIET_TOOLS) or name == REWRITE:  # a rewrite that was not applied is shown in full below
        return rows
    lines = [line.rstrip() for line in shown(output).strip("\n").split("\n")] if output.strip() not in _NOTHING else []
    for line in _preview(lines):
        rows.append(paint([("dim", "  │ " + line[: cut(line, max(width - 4, 10))])]))
    return rows


def _preview(lines: list[str]) -> Iterable[str]:
    if len(lines) <= _PREVIEW_HEAD + _PREVIEW_TAIL + 1:
        return lines
    left = len(lines) - _PREVIEW_HEAD - _PREVIEW_TAIL
    return [*lines[:_PREVIEW_HEAD], f"… {left} more lines", *lines[-_PREVIEW_TAIL:]]


def table(pairs: Sequence[tuple[str, str]], width: int) -> list[Row]:
    """Names and values in two columns; if that leaves too little room, each value under its name."""
    column = max((cells(name) for name, _ in pairs), default=0) + 2
    rows: list[Row] = []
    if width - column < _NARROW:
        for name, value in pairs:
            rows += wrapped(name, width, first=[("", "  ")], indent=2, meaning="dim")
            rows += wrapped(value, width, first=[("", "    ")], indent=4)
        return rows
    for name, value in pairs:
        lead: list[Span] = [("dim", f"  {name}{' ' * (column - cells(name))}")]
        rows += wrapped(value, width, first=lead, indent=column + 2)
    return rows


TASK_MARKS: dict[str, Span] = {
    "open": ("dim", "☐"),
    "running": ("accent", "◐"),
    "done": ("good", "✓"),
    "failed": ("bad", "✗"),
}


def task_text(task: TaskState) -> str:
    """One task in one row, without its mark."""
    tag = f"[{task.tag}] " if task.tag else ""
    took = f"  {', '.join(task.models)} · {duration(task.seconds)}" if task.seconds else ""
    return f"{task.number:>2} {tag}{one_row(task.text)}{took}"


def task_rows(tasks: Sequence[TaskState], width: int) -> list[Row]:
    """A whole task list."""
    return [paint([TASK_MARKS[task.state], ("", f" {shorten(task_text(task), width - 3)}")]) for task in tasks]


PLAN_MARKS: dict[str, Span] = {
    "pending": TASK_MARKS["open"],
    "in_progress": TASK_MARKS["running"],
    "completed": TASK_MARKS["done"],
}


def plan_rows(steps: Sequence[PlanStep], width: int) -> list[Row]:
    """The model's whole plan."""
    return [paint([PLAN_MARKS[step.status], ("", f" {shorten(one_row(step.step), width - 3)}")]) for step in steps]


def member_rows(done: MemberFinished, width: int) -> list[Row]:
    """A subagent's end: which models answered, what it said and changed, and what could not be merged."""
    ok = done.how == "done" and not done.conflicts and bool(done.paths or not done.left_out)
    who = f"answered by {', '.join(done.models)}" if done.models else "without a model"
    asked = "" if done.models in ((), (done.model,)) else f", asked for {done.model}"
    numbers = f"{duration(done.seconds)}, {count(done.output_tokens)} tokens"
    head = f"{done.member}: {done.how}, {who}{asked} · {numbers}"
    rows = wrapped(head, width, first=[("good", "✓ ") if ok else ("bad", "✗ ")], indent=2)
    lines = [line.rstrip() for line in shown(done.text).strip("\n").split("\n") if line.strip()]
    lines += [f"changed {', '.join(done.paths)}"] if done.paths else []
    rows += [paint([("dim", "  │ " + line[: cut(line, max(width - 4, 10))])]) for line in _preview(lines)]
    if done.conflicts:
        text = f"not merged: {', '.join(done.conflicts)} changed meanwhile"
        rows += problem(text, f"what it would have changed, kept in {done.patch}:", width, warning=True)
        rows += diff_rows(done.diff, limit=_CONFLICT_ROWS, names=True)
    return rows


def costs(parts: Sequence[RouteCost]) -> str:
    """What each model cost in a turn."""
    told = []
    for part in parts:
        price = f", ${part.cost:.4f}" if part.cost is not None else ""
        tokens = f"{count(part.input_tokens)} tokens read, {count(part.output_tokens)} written"
        told.append(f"{part.side} {part.model}: {duration(part.seconds)}, {tokens}{price}")
    return " · ".join(told)


def duration(seconds: float) -> str:
    """Format seconds for people."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02} s"


def count(number: int) -> str:
    """Format a token count in few characters: 950, 12.4k, 131k."""
    if number < 1000:
        return str(number)
    return f"{number / 1000:.1f}k" if number < 100_000 else f"{number // 1000}k"
