"""`fulgur next FILE`: after the last change of a file, the edits that probably follow from it."""

from __future__ import annotations

import argparse
import difflib
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fulgur.errors import FulgurError

if TYPE_CHECKING:
    from fulgur.edit.region import Region
    from fulgur.text.edit_format import RecentEdit
    from fulgur.ui.commands.edit import Document

CANDIDATES = 4
RECENT = 3
ALIKE = ("list", "dict", "tuple", "not")  # `x = list()` → `x = []` may be followed by the same for dict()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="FILE", help="the file that was just changed")
    parser.add_argument("--write", action="store_true", help="make the edits (the diff is shown either way)")
    parser.add_argument(
        "-m", "--model", metavar="MODEL", help="an embedded model by name (60M, 30M), or a model folder"
    )
    parser.add_argument("-C", "--cd", metavar="DIR", type=Path, help="work in this folder")


def run(args: argparse.Namespace) -> int:
    from fulgur.edit.answer import fitted
    from fulgur.edit.embedded import Embedded
    from fulgur.text.edit_format import Rewrite, parse_answer
    from fulgur.ui.commands.edit import Document, show

    document = Document.open(args.cd or Path(), args.target)
    recent, changed_lines = last_change(document)
    regions = candidates(document, recent, changed_lines)
    if not regions:
        print("No other place looks like the last change.", file=sys.stderr)
        return 0
    model = Embedded.open(args.model)
    asks = [model.edit(document.name, r.above, r.text, r.below, None, tuple(recent)) for r in regions]
    replies = model.ask(asks)
    text, made = document.text, 0
    for region, reply in sorted(zip(regions, replies, strict=True), key=lambda pair: -pair[0].start):
        answer = parse_answer(reply.text)
        proposed = [(renamed_like(region.text, recent), True)]
        if isinstance(answer, Rewrite) and reply.finished and like(region.text, answer.text, recent):
            proposed.append((fitted(answer.text, region.text), False))
        for wanted, exact in proposed:
            new = text[: region.start] + wanted + text[region.end :]
            if wanted != region.text and sound(document, text, new, exact=exact):
                text, made = new, made + 1
                break
    if not made:
        print("No next edit.", file=sys.stderr)
        return 0
    show(document, text, replies[0], args.write)
    return 0


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
    from fulgur.edit.refactor.verify import renamed_only

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
    from fulgur.edit.refactor.unbound import newly_unbound, unbound
    from fulgur.ui.commands.edit import broken

    if broken(document.path, before, after) is not None:
        return False
    if document.path.suffix not in (".py", ".pyi"):
        return not exact
    if newly_unbound(before, after):
        return False
    return not exact or (unbound(after) or set()) < (unbound(before) or set())


def last_change(document: Document) -> tuple[list[RecentEdit], set[int]]:
    """The lines that changed last, oldest first, and where they stand now: from the journal, else from git."""
    before = previous_text(document)
    old, new = before.splitlines(keepends=True), document.text.splitlines(keepends=True)
    from fulgur.text.edit_format import RecentEdit

    edits: list[RecentEdit] = []
    lines: set[int] = set()
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal" and (b > a):
            edits.append(RecentEdit("".join(old[a:b][:6]), "".join(new[c:d][:6])))
            lines.update(range(c + 1, d + 1))
    if not edits:
        raise FulgurError(f"{document.path} has no change to go on from", hint="Change something first.")
    return edits[-RECENT:], lines


def previous_text(document: Document) -> str:
    """The file before its last change: by `fulgur edit`, else as git has it."""
    from fulgur.sandbox.git import committed
    from fulgur.workspace import folders
    from fulgur.workspace.journal import EditJournal, plain_text
    from fulgur.workspace.textfile import TextFile

    journal = EditJournal(folders.home() / "edits")
    entry = journal.last(document.path)
    if entry is not None and journal.contents(entry)[1] == document.data:
        return plain_text(TextFile.decode(journal.contents(entry)[0], str(document.path)))
    stored = committed(document.path, folders.home())
    if stored is None:
        raise FulgurError(
            f"there is no earlier version of {document.path}",
            hint="`fulgur next` follows an edit made with `fulgur edit --write`, or changes since the last git commit.",
        )
    return plain_text(TextFile.decode(stored, str(document.path)))


def candidates(document: Document, recent: list[RecentEdit], changed: set[int]) -> list[Region]:
    """Regions with lines that look like what was changed, best first; they do not overlap."""
    from fulgur.edit.region import Target, locate

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
            region = locate(document.text, Target(document.path, None, (number, number)))
        except FulgurError:
            continue
        if all(region.end <= other.start or region.start >= other.end for other in regions):
            regions.append(region)
    return regions
