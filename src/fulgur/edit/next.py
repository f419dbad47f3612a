"""Predict the edits that follow from the last change of a file."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import tokenize
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fulgur.edit.answer import fitted
from fulgur.edit.checks import check
from fulgur.edit.checks.names import valueless
from fulgur.edit.checks.statements import parts
from fulgur.edit.document import Document
from fulgur.edit.editor import Proposal, Refusal, Task, verified
from fulgur.edit.refactor.source import Source, Unusable
from fulgur.edit.refactor.verify import renamed_only
from fulgur.edit.region import Region, Target, bounded, enclosing, locate_region
from fulgur.edit.repeat import repeated
from fulgur.errors import FulgurError
from fulgur.sandbox.git import committed
from fulgur.text.edit_format import RecentEdit, Rewrite, parse_answer
from fulgur.workspace import folders
from fulgur.workspace.diff import changed_runs
from fulgur.workspace.textfile import TextFile

if TYPE_CHECKING:
    from fulgur.edit.checks.members.process import MemberCheck
    from fulgur.edit.model import Answer, Model
    from fulgur.workspace.journal import EditJournal

CANDIDATES = 4
RECENT = 3


def plan_next(
    document: Document, journal: EditJournal, model: Model, members: MemberCheck | None = None
) -> tuple[Proposal | Refusal, Answer | None]:
    """All edits that follow from the last change on disk, as one proposal."""
    following = Following.of(document, previous_text(document, journal))
    if (known := following.known(members)) is not None:
        return known, None
    answers = model.rewrite_all([following.item(region) for region in following.regions])
    said = [(answer.text, answer.finished) for answer in answers]
    return following.proposal(dict(zip(following.regions, said, strict=True)), members), answers[0]


@dataclass(frozen=True)
class Following:
    """What may follow from the recent edits of a document.

    `known` needs no model; if it is None, ask one with `item` for each region and hand the answers to `proposal`.
    """

    document: Document
    recent: list[RecentEdit]
    changed: frozenset[int]  # the lines of the last changes

    @classmethod
    def of(cls, document: Document, previous: str) -> Following:
        """What may follow, given the text before the last changes."""
        recent, changed = last_change(document, previous)
        return cls(document, recent, frozenset(changed))

    @cached_property
    def regions(self) -> list[Region]:
        """The regions to send to a model."""
        return candidates(self.document, self.recent, self.changed)

    def known(self, members: MemberCheck | None = None) -> Proposal | Refusal | None:
        """What follows without a model: the last change repeated, or a half-done rename finished."""
        if (found := self._repeated(members) or self._renamed(members)) is not None:
            return found
        return None if self.regions else Refusal("", "No other place looks like the last change.")

    def _repeated(self, members: MemberCheck | None) -> Proposal | None:
        """The last change, repeated on every line that it fits."""
        document = self.document
        python = document.path.suffix in (".py", ".pyi")
        text = repeated(document.text, self.recent, self.changed, python=python)
        if text == document.text or not sound(document, document.text, text, exact=False):
            return None
        reads = valueless(text)
        gone = set().union(*(counted(edit.before) - counted(edit.after) for edit in self.recent))
        if reads is not None and gone & {name for _, name in reads.unbound}:
            return None  # a half-done rename
        result = self._verified(text, members)
        return replace(result, understood="repeat the last change") if isinstance(result, Proposal) else None

    def _renamed(self, members: MemberCheck | None) -> Proposal | None:
        """A name that lost its value with the last change, renamed where it is still read."""
        text = self.document.text
        for region in sorted(self.regions, key=lambda region: -region.start):
            new = text[: region.start] + renamed_like(region.text, self.recent) + text[region.end :]
            if new != text and sound(self.document, text, new, exact=True):
                text = new
        result = self._verified(text, members) if text != self.document.text else None
        return replace(result, understood="finish the last rename") if isinstance(result, Proposal) else None

    def item(self, region: Region) -> dict[str, Any]:
        """The request to a model for one of the regions."""
        return Task(self.document, region, None, self.recent).item()

    def proposal(
        self, answers: Mapping[Region, tuple[str, bool]], members: MemberCheck | None = None
    ) -> Proposal | Refusal:
        """Apply the answers (text, and whether it was finished) for some regions, and check the result."""
        text = self.document.text
        for region, (said, finished) in sorted(answers.items(), key=lambda pair: -pair[0].start):
            written = parse_answer(said)
            if not isinstance(written, Rewrite) or not finished or not like(region.text, written.text, self.recent):
                continue
            new = text[: region.start] + fitted(written.text, region.text) + text[region.end :]
            if new != text and sound(self.document, text, new, exact=False):
                text = new
        return self._verified(text, members) if text != self.document.text else Refusal("", "No next edit.")

    def _verified(self, text: str, members: MemberCheck | None) -> Proposal | Refusal:
        asked = set().union(*(counted(edit.after) for edit in self.recent))
        return verified(self.document, text, asked, (), members)


def like(before: str, after: str, recent: Sequence[RecentEdit]) -> bool:
    """Whether every change of a rewrite removes and adds the same words and signs as one of the recent edits."""
    wanted = [_difference(edit.before, edit.after) for edit in recent]
    for edit in recent:
        wanted += [_difference(*pair) for pair in zip(edit.before.splitlines(), edit.after.splitlines(), strict=False)]
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for a, b, c, d in changed_runs(old, new):
        if _difference("".join(old[a:b]), "".join(new[c:d])) in wanted:
            continue
        if b - a != d - c or any(_difference(*pair) not in wanted for pair in zip(old[a:b], new[c:d], strict=True)):
            return False
    return True


def _difference(before: str, after: str) -> tuple[Counter[str], Counter[str]]:
    old, new = (Counter(re.findall(r"\w+|[^\w\s]", text)) for text in (before, after))
    return old - new, new - old


def counted(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text))


def renamed_like(text: str, recent: Sequence[RecentEdit]) -> str:
    """The code with a name replaced everywhere, if that is all the last edit did; otherwise unchanged."""
    before, after = (part.strip() for part in (recent[-1].before, recent[-1].after))
    gone, come = counted(before) - counted(after), counted(after) - counted(before)
    if len(gone) != 1 or len(come) != 1:
        return text
    [old], [new] = gone, come
    if not old.isidentifier() or not new.isidentifier() or not renamed_only(before, after, old, new):
        return text
    lines = text.splitlines(keepends=True)
    indented = text[:1] in (" ", "\t")
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO("if 1:\n" * indented + text).readline))
    except (tokenize.TokenError, SyntaxError):
        return text
    for token in reversed(tokens):
        if token.type == tokenize.NAME and token.string == old:
            row, column = token.start[0] - 1 - indented, token.start[1]
            lines[row] = lines[row][:column] + new + lines[row][column + len(old) :]
    return "".join(lines)


def sound(document: Document, before: str, after: str, *, exact: bool) -> bool:
    """Whether a change parses and leaves no name unbound; an `exact` one must also bind a name that was unbound."""
    found = check(document.path, before, after)
    if found.parses or any(problem.certain for problem in found.names):
        return False
    if not exact:
        return True
    old, new = valueless(before), valueless(after)
    return old is not None and new is not None and new.unbound < old.unbound


def last_change(document: Document, before: str) -> tuple[list[RecentEdit], set[int]]:
    """The last edits since the text `before`, in file order, and the numbers of all changed lines.

    Pure insertions do not count."""
    old, new = before.splitlines(keepends=True), document.text.splitlines(keepends=True)
    edits: list[RecentEdit] = []
    lines: set[int] = set()
    for a, b, c, d in changed_runs(old, new):
        if b > a:
            edits.append(RecentEdit("".join(old[a:b][:6]), "".join(new[c:d][:6])))
            lines.update(range(c + 1, d + 1))
    if not edits:
        raise FulgurError(f"{document.path} has no recent change to continue from", hint="Change something first.")
    return edits[-RECENT:], lines


def previous_text(document: Document, journal: EditJournal) -> str:
    """The file before its last change by `fulgur edit`; without one, as git has it."""
    real = document.path.resolve()
    before = journal.before(real, document.data)
    if before is None:
        before = committed(real, folders.home())
    if before is None:
        raise FulgurError(
            f"there is no earlier version of {document.path}",
            hint="`fulgur next` follows an edit made with `fulgur edit --write`, or changes since the last git commit.",
        )
    return TextFile.decode(before, str(document.path)).plain


def candidates(document: Document, recent: list[RecentEdit], changed: Collection[int]) -> list[Region]:
    """Regions with lines that resemble the changed ones, best first; they do not overlap."""
    gone: set[str] = set()
    for edit in recent:
        gone |= set(re.findall(r"\w+", edit.before)) - set(re.findall(r"\w+", edit.after))
    shared = [line.strip() for edit in recent for line in edit.before.splitlines() if line.strip()]
    scored = []
    for number, line in enumerate(document.text.split("\n"), 1):
        if number in changed or not line.strip():
            continue
        touched = bool(gone & set(re.findall(r"\w+", line)))
        if gone and not touched and line.strip() not in shared:
            continue  # its score cannot reach 1, and comparing every line of a long file takes too long
        score = 2.0 * touched
        score += max((difflib.SequenceMatcher(None, line.strip(), other).ratio() for other in shared), default=0.0)
        if score >= 1.0 or (not gone and score > 0.6):
            scored.append((score, number))
    regions: list[Region] = []
    for _, number in sorted(scored, key=lambda pair: (-pair[0], pair[1])):
        if len(regions) == CANDIDATES:
            break
        if any(region.first_line <= number <= region.last_line for region in regions):
            continue
        try:
            region = region_at(document, number)
        except FulgurError:
            continue
        if all(region.end <= other.start or region.start >= other.end for other in regions):
            regions.append(region)
    return regions


def region_at(document: Document, line: int) -> Region:
    """The function or statement around a line. Parses only the top-level statement that holds the line."""
    text, target = document.text, Target(document.path, None, (line, line))
    above = 0
    for part in (parts(text) if document.path.suffix in (".py", ".pyi") else None) or ():
        if line <= above + part.count("\n"):
            with contextlib.suppress(Unusable):
                first, last = enclosing(Source(part), line - above)
                return bounded(text, first + above, last + above, target)
            break
        above += part.count("\n")
    return locate_region(text, target)
