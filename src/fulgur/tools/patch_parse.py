"""Codex's patch format, from text to operations. What is wrong is said with its line number.

*** Begin Patch
*** Add File: PATH        then lines with `+`
*** Delete File: PATH
*** Update File: PATH     optionally `*** Move to: PATH`, then hunks: `@@ [context]`, lines with ` `, `-`, `+`,
                          and `*** End of File` after a hunk that must reach the end
*** End Patch
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fulgur.errors import FulgurError

_BEGIN, _END, _EOF = "*** Begin Patch", "*** End Patch", "*** End of File"
_FILE = re.compile(r"\*\*\* (Add|Delete|Update) File: (.+)")
_MOVE = re.compile(r"\*\*\* Move to: (.+)")
_HEREDOC = re.compile(r"""\s*(?:apply_patch\s+)?<<-?\s*['"]?(\w+)['"]?\s*$""")


class PatchError(FulgurError):
    """The patch cannot be parsed or does not fit; nothing was changed."""


@dataclass
class Hunk:
    """A run of lines: (kind, text) with kind ` `, `-` or `+`. `headers` are the `@@` lines that lead to it."""

    headers: list[str] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    at_end: bool = False

    @property
    def old(self) -> list[str]:
        """The lines that the file must have there."""
        return [text for kind, text in self.lines if kind != "+"]


@dataclass
class AddFile:
    """A new file."""

    path: str
    lines: list[str]


@dataclass
class DeleteFile:
    """A file to remove."""

    path: str


@dataclass
class UpdateFile:
    """Changes to a file, and its new name if it moves."""

    path: str
    hunks: list[Hunk]
    move_to: str | None = None


Operation = AddFile | DeleteFile | UpdateFile


def parse_patch(text: str) -> list[Operation]:
    """Parse the operations of a patch."""
    lines = _strip_wrapping(text)
    operations: list[Operation] = []
    index = 1
    while index < len(lines) - 1:
        line = lines[index]
        if not line.strip():
            index += 1
            continue
        match = _FILE.fullmatch(line.rstrip())
        if match is None:
            raise PatchError(
                f"line {index + 1} of the patch: {line!r} is not the start of a file",
                hint="Expected `*** Add File: PATH`, `*** Delete File: PATH` or `*** Update File: PATH`.",
            )
        index += 1
        path = match[2].strip()
        if match[1] == "Add":
            index, operation = _add(lines, index, path)
            operations.append(operation)
        elif match[1] == "Delete":
            operations.append(DeleteFile(path))
        else:
            index, update = _update(lines, index, path)
            operations.append(update)
    if not operations:
        raise PatchError("the patch changes nothing")
    return operations


def _strip_wrapping(text: str) -> list[str]:
    """The lines from Begin to End; models like to wrap a patch in a here-document or a code fence."""
    lines = text.replace("\r\n", "\n").strip("\n").split("\n")
    if lines and (match := _HEREDOC.match(lines[0])) and lines[-1].strip() == match[1]:
        lines = lines[1:-1]
    if lines and lines[0].startswith("```") and lines[-1].strip() == "```":
        lines = lines[1:-1]
    if not lines or lines[0].strip() != _BEGIN:
        raise PatchError(f"the first line of a patch must be `{_BEGIN}`")
    if lines[-1].strip() != _END:
        raise PatchError(f"the last line of a patch must be `{_END}`")
    return [*lines[:-1], _END]  # the parser relies on `_END` ending every section, however it was indented


def _add(lines: list[str], index: int, path: str) -> tuple[int, AddFile]:
    added: list[str] = []
    while not lines[index].startswith("*** "):
        if not lines[index].startswith("+"):
            raise PatchError(f"line {index + 1} of the patch: every line of a new file starts with `+`")
        added.append(lines[index][1:])
        index += 1
    return index, AddFile(path, added)


def _update(lines: list[str], index: int, path: str) -> tuple[int, UpdateFile]:
    update = UpdateFile(path, [])
    if match := _MOVE.fullmatch(lines[index].rstrip()):
        update.move_to = match[1].strip()
        index += 1
    while not lines[index].startswith("*** "):
        index, hunk = _hunk(lines, index)
        update.hunks.append(hunk)
    if not update.hunks and update.move_to is None:
        raise PatchError(f"line {index} of the patch: the update of {path} has no hunk")
    return index, update


def _hunk(lines: list[str], index: int) -> tuple[int, Hunk]:
    hunk = Hunk()
    first = index
    while lines[index].startswith("@@"):
        header = lines[index][2:].strip()
        # `@@ -1,2 +3,4 @@` is a line number of another format; ignore it.
        if header and not re.match(r"-\d+(,\d+)? \+\d+", header):
            hunk.headers.append(header.removesuffix("@@").strip())
        index += 1
    while True:
        line = lines[index]
        if line.rstrip() == _EOF:
            hunk.at_end = True
            index += 1
            break
        if line.startswith(("*** ", "@@")):
            break
        if line == "":
            hunk.lines.append((" ", ""))  # the space of an empty context line is often lost
        elif line[0] in " -+":
            hunk.lines.append((line[0], line[1:]))
        else:
            raise PatchError(
                f"line {index + 1} of the patch: {line!r} starts with none of ` `, `-`, `+`",
                hint="Context lines start with one space.",
            )
        index += 1
    while hunk.lines and hunk.lines[-1] == (" ", "") and lines[index - 1] == "":
        # Empty lines before the next section are layout, not context.
        hunk.lines.pop()
        break
    if not hunk.lines:
        raise PatchError(f"line {first + 1} of the patch: the hunk is empty")
    return index, hunk
