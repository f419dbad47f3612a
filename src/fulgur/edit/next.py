"""After the last change of a file: the edits that probably follow from it."""

from __future__ import annotations

import difflib
import io
import re
import tokenize
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fulgur.edit.answer import fitted
from fulgur.edit.checks import check
from fulgur.edit.checks.names import valueless
from fulgur.edit.document import Document
from fulgur.edit.editor import Proposal, Refusal, Task, verified
from fulgur.edit.refactor.verify import renamed_only
from fulgur.edit.region import Region, Target, locate_region
from fulgur.errors import FulgurError
from fulgur.sandbox.git import committed
from fulgur.text.edit_format import RecentEdit, Rewrite, parse_answer
from fulgur.workspace import folders
from fulgur.workspace.textfile import TextFile

if TYPE_CHECKING:
    from fulgur.edit.checks.members.process import MemberCheck
    from fulgur.edit.model import Answer, Model
    from fulgur.workspace.journal import EditJournal

CANDIDATES = 4
RECENT = 3
ALIKE = ("list", "dict", "tuple", "not")  # `x = list()` → `x = []` may be followed by the same for dict()


def plan_next(
    document: Document, journal: EditJournal, model: Model, members: MemberCheck | None = None
) -> tuple[Proposal | Refusal, Answer | None]:
    """All edits that follow from the last change, as one proposal."""
    recent, changed = last_change(document, journal)
    regions = candidates(document, recent, changed)
    if not regions:
        return Refusal("", "No other place looks like the last change."), None
    answers = model.rewrite_all([Task(document, region, None, recent).item() for region in regions])
    text = document.text
    for region, answer in sorted(zip(regions, answers, strict=True), key=lambda pair: -pair[0].start):
        written = parse_answer(answer.text)
        proposed = [(renamed_like(region.text, recent), True)]
        if isinstance(written, Rewrite) and answer.finished and like(region.text, written.text, recent):
            proposed.append((fitted(written.text, region.text), False))
        for wanted, exact in proposed:
            new = text[: region.start] + wanted + text[region.end :]
            if wanted != region.text and sound(document, text, new, exact=exact):
                text = new
                break
    if text == document.text:
        return Refusal("", "No next edit."), answers[0]
    asked = set().union(*(counted(edit.after) for edit in recent))
    return verified(document, text, asked, (), members), answers[0]


def like(before: str, after: str, recent: Sequence[RecentEdit]) -> bool:
    """Whether a rewrite adds and removes only words that the recent edits added and removed."""
    added, removed = set(ALIKE), set(ALIKE)
    for edit in recent:
        added |= set(counted(edit.after) - counted(edit.before))
        removed |= set(counted(edit.before) - counted(edit.after))
    old, new = counted(before), counted(after)
    return set(new - old) <= added and set(old - new) <= removed


def counted(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text))


def renamed_like(text: str, recent: Sequence[RecentEdit]) -> str:
    """The code with a name replaced everywhere, if that is all the last edit did; else as it is."""
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
    """Whether a change parses and leaves no name without a value; an `exact` one must give one its value back."""
    found = check(document.path, before, after)
    if found.parses or any(problem.certain for problem in found.names):
        return False
    if not exact:
        return True
    old, new = valueless(before), valueless(after)
    return old is not None and new is not None and new.unbound < old.unbound


def last_change(document: Document, journal: EditJournal) -> tuple[list[RecentEdit], set[int]]:
    """The lines that changed last, oldest first, and where they stand now: from the journal, else from git."""
    before = previous_text(document, journal)
    old, new = before.splitlines(keepends=True), document.text.splitlines(keepends=True)
    edits: list[RecentEdit] = []
    lines: set[int] = set()
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal" and (b > a):
            edits.append(RecentEdit("".join(old[a:b][:6]), "".join(new[c:d][:6])))
            lines.update(range(c + 1, d + 1))
    if not edits:
        raise FulgurError(f"{document.path} has no change to go on from", hint="Change something first.")
    return edits[-RECENT:], lines


def previous_text(document: Document, journal: EditJournal) -> str:
    """The file before its last change: by `fulgur edit`, else as git has it."""
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


def candidates(document: Document, recent: list[RecentEdit], changed: set[int]) -> list[Region]:
    """Regions with lines that look like what was changed, best first; they do not overlap."""
    gone: set[str] = set()
    for edit in recent:
        gone |= set(re.findall(r"\w+", edit.before)) - set(re.findall(r"\w+", edit.after))
    shared = [line.strip() for edit in recent for line in edit.before.splitlines() if line.strip()]
    scored = []
    for number, line in enumerate(document.text.split("\n"), 1):
        if number in changed or not line.strip():
            continue
        score = 2.0 * bool(gone & set(re.findall(r"\w+", line)))
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
            region = locate_region(document.text, Target(document.path, None, (number, number)))
        except FulgurError:
            continue
        if all(region.end <= other.start or region.start >= other.end for other in regions):
            regions.append(region)
    return regions
