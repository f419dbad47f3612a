"""The marks inside a line of Markdown: strong, emphasis, code, links, escapes.

A mark counts only if its partner comes within `LOOK` characters; otherwise it is shown literally, so a lone `*` or
`` ` `` is never swallowed. While a line streams, a mark whose partner may still come is unsettled, and rows are closed
only before it. So the result does not depend on how the text was cut into pieces.
"""

from __future__ import annotations

import re

from fulgur.ui.tui.theme import Span

LOOK = 240  # how far away the partner of a mark may be
Marks = tuple[str, ...]  # open ones, outermost first
_PLAIN = re.compile(r"[^\\`*_\[\]]+")
_LINK = re.compile(r"[^\]\n]+\]\([^()\s]+\)")
_ESCAPED = frozenset("\\`*_{}[]()#+-.!|>~")
# `__` is left out: in answers about code it begins `__init__` far more often than bold words.
_MEANING = {"**": "strong", "*": "italic", "_": "italic", "[": "link", "`": "code"}


class Inline:
    """One line, or the rest of one: the characters shown, what they mean, and where each is in the raw line."""

    def __init__(self, line: str, marks: Marks = (), *, final: bool, meaning: str = "") -> None:
        self.text = ""
        self.spans: list[Span] = []
        self.settled: int | None = None  # characters of `text` that more input cannot change; None: all
        self._line, self._marks, self._final, self._meaning = line, marks, final, meaning
        self._at = 0
        self._ends: list[tuple[int, int, Marks]] = [(0, 0, marks)]  # per piece: shown end, raw end, open marks
        while self._at < len(line):
            self._step()

    def before(self, end: int) -> list[Span]:
        """The spans of the first `end` characters."""
        spans, used = [], 0
        for meaning, text in self.spans:
            if used < end:
                spans.append((meaning, text[: end - used]))
            used += len(text)
        return spans

    def cut(self, end: int) -> tuple[int, Marks]:
        """Where the raw line continues after `end` shown characters, and the marks open there."""
        at, marks = 0, self._ends[0][2]
        for shown, raw, open_after in self._ends:
            if shown > end:  # inside a piece, raw and shown text are equally long
                return raw - (shown - end), open_after
            at, marks = raw, open_after
        return at, marks

    # ---- reading ----------------------------------------------------------------------------------------------

    def _step(self) -> None:
        line, at = self._line, self._at
        if self._marks and self._marks[-1][0] == "`":
            self._code(self._marks[-1])
        elif plain := _PLAIN.match(line, at):
            self._show(plain.group())
        elif line[at] == "\\":
            self._escape()
        elif line[at] == "`":
            self._backticks()
        elif line[at] == "[":
            self._bracket()
        elif line[at] == "]":
            self._target()
        else:
            self._stars()

    def _show(self, text: str, meaning: str | None = None) -> None:
        if meaning is None:
            meaning = _MEANING[self._marks[-1]] if self._marks else self._meaning
        self.spans.append((meaning, text))
        self.text += text
        self._at += len(text)
        self._ends.append((len(self.text), self._at, self._marks))

    def _hide(self, length: int, marks: Marks) -> None:
        self._at += length
        self._marks = marks
        self._ends.append((len(self.text), self._at, marks))

    def _unsettle(self) -> None:
        if self.settled is None:
            self.settled = len(self.text)

    def _run(self) -> str:
        """The run of the same character here; it may still grow at the end of the input."""
        line, at = self._line, self._at
        end = at
        while end < len(line) and line[end] == line[at]:
            end += 1
        if end == len(line) and not self._final:
            self._unsettle()
        return line[at:end]

    def _partner(self, pattern: re.Pattern[str], start: int, length: int = LOOK, *, here: bool = False) -> bool:
        """Whether a mark's partner follows. Near the end of the input it may still come, or become something else."""
        look = pattern.match if here else pattern.search
        found = look(self._line[: start + length], start)
        end = found.end() if found else start + length - 1
        if not self._final and end >= len(self._line):
            self._unsettle()
        return found is not None

    def _escape(self) -> None:
        after = self._line[self._at + 1 : self._at + 2]
        if not after and not self._final:
            self._unsettle()
        if after and after in _ESCAPED:
            self._hide(1, self._marks)
            self._show(after)
        else:
            self._show("\\")

    def _backticks(self) -> None:
        run = self._run()
        if self._partner(_ticks(run), self._at + len(run)):
            self._hide(len(run), (*self._marks, run))
        else:
            self._show(run)

    def _code(self, run: str) -> None:
        rest = self._line[self._at :]
        close = _ticks(run).search(rest)
        if close is None or close.start():
            self._show(rest[: close.start()] if close else rest, "code")
        if close is not None:
            self._hide(len(run), self._marks[:-1])

    def _stars(self) -> None:
        line, at, run = self._line, self._at, self._run()
        before, after = line[at - 1 : at] if at else "", line[at + len(run) : at + len(run) + 1]
        word = run[0] == "_" and (after.isalnum() or after == "_")
        if run in self._marks and before != " " and not word:
            self._hide(len(run), self._marks[: self._marks.index(run)])
        elif run in _MEANING and after.strip() and not before.isalnum() and self._closes(run, at + len(run)):
            self._hide(len(run), (*self._marks, run))
        else:
            self._show(run)

    def _closes(self, run: str, start: int) -> bool:
        one = re.escape(run[0])
        end = r"(?!\w)" if run[0] == "_" else ""
        return self._partner(re.compile(rf"(?<![\s{one}]){re.escape(run)}(?!{one}){end}"), start)

    def _bracket(self) -> None:
        if "[" not in self._marks and self._partner(_LINK, self._at + 1, 2 * LOOK, here=True):
            self._hide(1, (*self._marks, "["))
        else:
            self._show("[")

    def _target(self) -> None:
        """Handle `](address)` after a link's words: always show the address, so that no link hides where it leads."""
        if "[" in self._marks and (target := re.match(r"\](\([^()\s]+\))", self._line[self._at :])):
            self._marks = self._marks[: self._marks.index("[")]
            self._line = f"{self._line[: self._at]} {self._line[self._at + 1 :]}"  # a space instead of the bracket
            self._show(f" {target.group(1)}", "dim")
        else:
            self._show("]")


def _ticks(run: str) -> re.Pattern[str]:
    return re.compile(f"(?<!`){run}(?!`)")
