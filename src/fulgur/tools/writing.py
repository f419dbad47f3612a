"""The tools that change files: apply_patch and edit."""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Meta

from fulgur.errors import FulgurError
from fulgur.protocol.agent import Location
from fulgur.tools import patch_match
from fulgur.tools.apply_patch import plan_patch
from fulgur.tools.base import Arguments, Report, Tool, ToolResult
from fulgur.tools.patch_parse import AddFile, PatchError, UpdateFile, parse_patch
from fulgur.workspace.files import Change, FileDiff, Files
from fulgur.workspace.textfile import TextFile, split_lines

PATCH_HELP = """Change files with a patch; all of it applies or none. Format:
*** Begin Patch
*** Update File: src/a.py
@@ def f
 context line
-old line
+new line
*** Add File: src/b.py
+first line
*** Delete File: src/c.py
*** End Patch
Three lines of context around a change are enough; `@@ def name` or `@@ class Name` leads to the right place."""


class PatchArguments(Arguments, frozen=True):
    """Arguments of `apply_patch`."""

    patch: Annotated[str, Meta(description="from `*** Begin Patch` to `*** End Patch`")]


class EditArguments(Arguments, frozen=True):
    """Arguments of `edit`."""

    path: Annotated[str, Meta(description="the file, relative to the workspace")]
    old: Annotated[str, Meta(description="the text to replace; it must be in the file once", min_length=1)]
    new: Annotated[str, Meta(description="what takes its place")]
    all: Annotated[bool, Meta(description="replace every occurrence")] = False


def writing_tools(files: Files) -> list[Tool]:  # type: ignore[type-arg]
    """Build apply_patch and edit for the session's files."""

    async def apply_patch(args: PatchArguments, report: Report) -> ToolResult:
        planned = await asyncio.to_thread(plan_patch, args.patch, files)
        diffs = await asyncio.to_thread(files.commit, planned.changes)
        return ToolResult(True, "\n".join([*summary(diffs), *planned.notes]), diffs)

    def plan_edit(args: EditArguments) -> tuple[Change, list[str]]:
        path = files.writable(args.path)
        before = files.read(path)
        file = TextFile.decode(before, args.path)
        note = replace_text(file, args.old, args.new, args.path, every=args.all)
        return Change(path, before, file.encode(args.path)), note

    async def edit(args: EditArguments, report: Report) -> ToolResult:
        change, note = await asyncio.to_thread(plan_edit, args)
        diffs = await asyncio.to_thread(files.commit, [change])
        return ToolResult(True, "\n".join([*summary(diffs), *note]), diffs)

    return [
        Tool(
            "apply_patch",
            PATCH_HELP,
            PatchArguments,
            apply_patch,
            _patch_title,
            mutates=True,
            parallel=False,
            plan=lambda a: plan_patch(a.patch, files).changes,
            kind="edit",
            places=_patch_places,
        ),
        Tool(
            "edit",
            "Replace a text in a file by another. The old text must be in the file exactly once, or `all` be true.",
            EditArguments,
            edit,
            lambda a: f"edit {a.path}",
            mutates=True,
            parallel=False,
            plan=lambda a: [plan_edit(a)[0]],
            kind="edit",
            places=lambda a: [Location(a.path)],
        ),
    ]


def _patch_title(args: PatchArguments) -> str:
    try:
        operations = parse_patch(args.patch)
    except PatchError:
        return "apply_patch"
    words = {AddFile: "add", UpdateFile: "change"}
    return ", ".join(f"{words.get(type(operation), 'delete')} {operation.path}" for operation in operations)


def _patch_places(args: PatchArguments) -> list[Location]:
    try:
        return [Location(operation.path) for operation in parse_patch(args.patch)]
    except PatchError:
        return []


def summary(diffs: list[FileDiff]) -> list[str]:
    """Summarise each file in one line."""
    if not diffs:
        return ["nothing changed: the files already have this content"]
    return [f"{diff.kind} {diff.path} (+{diff.added} -{diff.removed})" for diff in diffs]


def replace_text(file: TextFile, old: str, new: str, name: str, *, every: bool = False) -> list[str]:
    """Replace in place: exactly, or else line by line with tolerance.

    Return notes on how it matched. FulgurError if it does not.
    """
    newline = file.newline
    text = file.text
    wanted = _with_newlines(old, newline)
    count = text.count(wanted)
    if count == 1 or (count and every):
        file.lines, file.endings = split_lines(text.replace(wanted, _with_newlines(new, newline)))
        return []
    if count:
        raise FulgurError(
            f"{name}: the old text occurs {count} times", hint="Give more of the text around it, or set `all`."
        )
    old_lines = old.strip("\n").split("\n")
    match = patch_match.find_lines(file.lines, old_lines)
    if match is None or match.count > 1:
        near = patch_match.nearest_line(file.lines, old_lines)
        raise FulgurError(
            f"{name}: the old text is not in the file",
            hint=f"The nearest is {near}" if near else "Read the file again.",
        )
    pairs = list(zip(file.lines[match.start : match.start + len(old_lines)], old_lines, strict=True))
    new_lines = patch_match.shift_indentation(new.strip("\n").split("\n") if new.strip("\n") else [], pairs)
    file.replace(match.start, match.start + len(old_lines), [(line, None) for line in new_lines])
    return [f"matched {match.how}"]


def _with_newlines(text: str, newline: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", newline)
