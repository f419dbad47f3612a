"""Applies a patch to files: every new content is computed first, then all files change together or none does."""

from __future__ import annotations

from dataclasses import dataclass

from fulgur.errors import FulgurError
from fulgur.tools import patch_match
from fulgur.tools.patch_parse import AddFile, DeleteFile, Hunk, PatchError, UpdateFile, parse_patch
from fulgur.workspace.files import Change, Files
from fulgur.workspace.textfile import TextFile


@dataclass(frozen=True)
class Planned:
    """The changes that a patch amounts to, with notes on hunks that matched only with tolerance."""

    changes: list[Change]
    notes: list[str]


def plan_patch(text: str, files: Files) -> Planned:
    """Compute every change; raise PatchError, with nothing done, if any part does not fit."""
    changes: dict[str, Change] = {}
    notes: list[str] = []

    def take(change: Change) -> None:
        key = str(change.path)
        if key in changes:
            raise PatchError(
                f"{files.show(change.path)} is in the patch twice", hint="Put all its hunks under one header."
            )
        changes[key] = change

    for operation in parse_patch(text):
        path = files.writable(operation.path)
        if isinstance(operation, AddFile):
            before = files.read(path) if path.exists() else None
            body = "".join(f"{line}\n" for line in operation.lines).encode()
            take(Change(path, before, body))
            continue
        if path.is_dir():
            raise PatchError(f"{operation.path} is a folder")
        if not path.is_file():
            raise PatchError(f"{operation.path} does not exist", hint="Use `*** Add File:` for a new file.")
        if files.is_link(operation.path) and (isinstance(operation, DeleteFile) or operation.move_to is not None):
            # `path` is the link's target, which would be lost.
            raise PatchError(
                f"{operation.path} is a link to {files.show(path)}: a patch deletes and moves files only",
                hint=f"Name {files.show(path)} if you mean it; the shell deletes and moves links.",
            )
        before = files.read(path)
        if isinstance(operation, DeleteFile):
            take(Change(path, before, None))
            continue
        after, found = _update(before, operation)
        notes += found
        if operation.move_to is None:
            take(Change(path, before, after))
            continue
        target = files.writable(operation.move_to)
        if target.exists():
            raise PatchError(f"{operation.move_to} already exists, so {operation.path} cannot move to it")
        take(Change(path, before, None))
        take(Change(target, None, after, mode=path.stat().st_mode & 0o7777))
    return Planned(list(changes.values()), notes)


def _update(before: bytes, operation: UpdateFile) -> tuple[bytes, list[str]]:
    try:
        file = TextFile.decode(before, operation.path)
        notes: list[str] = []
        cursor = 0
        for number, hunk in enumerate(operation.hunks, 1):
            cursor, how = _apply_hunk(file, hunk, cursor, f"{operation.path}, hunk {number}")
            if how:
                notes.append(f"{operation.path}, hunk {number}: matched {how}")
        return file.encode(operation.path), notes
    except PatchError:
        raise
    except FulgurError as error:
        raise PatchError(error.message, hint=error.hint) from None


def _apply_hunk(file: TextFile, hunk: Hunk, cursor: int, where: str) -> tuple[int, str]:
    """Change the lines; return where the next hunk may begin, and how this one matched."""
    for header in hunk.headers:
        found = patch_match.find_lines(file.lines, [header], cursor) or _containing(file.lines, header, cursor)
        if found is None:
            raise PatchError(f"{where}: no line matches `@@ {header}`", hint=_near(file, [header]))
        cursor = found.start + 1
    old = hunk.old
    if not old:
        # Only additions: after the header's line, or at the end of the file.
        place = cursor if hunk.headers and not hunk.at_end else len(file.lines)
        file.replace(place, place, [(text, None) for _, text in hunk.lines])
        return place + len(hunk.lines), ""
    # The header's own line may be the first context line.
    start = max(cursor - 1, 0) if hunk.headers else cursor
    match = patch_match.find_lines(file.lines, old, start, at_end=hunk.at_end)
    if match is None and cursor:
        match = patch_match.find_lines(file.lines, old, 0, at_end=hunk.at_end)
    if match is None:
        raise PatchError(f"{where}: these lines are not in the file:\n" + "\n".join(old[:8]), hint=_near(file, old))
    if match.how and match.count > 1:
        raise PatchError(
            f"{where}: matches {match.count} places, none of them exactly",
            hint="Give more context, or an `@@ def …` line.",
        )
    new = _merge(file, hunk, match)
    file.replace(match.start, match.start + len(old), new)
    return match.start + len(new), match.how


def _merge(file: TextFile, hunk: Hunk, match: patch_match.Match) -> list[tuple[str, str | None]]:
    """Build the new lines: context keeps the file's own text and line endings, added lines take the file's
    indentation."""
    added = [text for kind, text in hunk.lines if kind == "+"]
    if match.how:
        pairs = list(zip(file.lines[match.start : match.start + len(hunk.old)], hunk.old, strict=True))
        added = patch_match.shift_indentation(added, pairs)
    lines: list[tuple[str, str | None]] = []
    position = match.start
    additions = iter(added)
    for kind, _ in hunk.lines:
        if kind == "+":
            lines.append((next(additions), None))
            continue
        if kind == " ":
            lines.append((file.lines[position], file.endings[position] or None))
        position += 1
    return lines


def _containing(lines: list[str], header: str, start: int) -> patch_match.Match | None:
    """Find the line that starts with a header: `@@ def f` stands for the line `    def f(self, x):`."""
    for index in range(start, len(lines)):
        if lines[index].strip().startswith(header):
            return patch_match.Match(index, "")
    return None


def _near(file: TextFile, wanted: list[str]) -> str | None:
    near = patch_match.nearest_line(file.lines, wanted)
    return f"The nearest is {near}" if near else "Read the file again before the next patch."
