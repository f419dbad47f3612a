"""The tools that only look: read, list and search."""

from __future__ import annotations

import asyncio
import fnmatch
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fulgur.errors import FulgurError
from fulgur.tools.base import Arguments, Report, Tool, ToolResult
from fulgur.workspace.files import Files
from fulgur.workspace.ignore import SKIPPED, IgnoreRules, walk
from fulgur.workspace.textfile import TextFile

_MOST_CHARACTERS = 40_000
_LONGEST_LINE = 500
_MOST_ENTRIES = 400


class ReadArguments(Arguments, frozen=True):
    """Arguments of `read`."""

    path: Annotated[str, Meta(description="the file, relative to the workspace")]
    start: Annotated[int, Meta(description="the first line, from 1", ge=1)] = 1
    lines: Annotated[int, Meta(description="how many lines at most", ge=1)] = 1000


class ListArguments(Arguments, frozen=True):
    """Arguments of `list`."""

    path: Annotated[str, Meta(description="the folder, relative to the workspace")] = "."
    depth: Annotated[int, Meta(description="how deep", ge=1, le=8)] = 2


class SearchArguments(Arguments, frozen=True):
    """Arguments of `search`."""

    pattern: Annotated[str, Meta(description="a regular expression")]
    path: Annotated[str, Meta(description="the folder or file to search in")] = "."
    glob: Annotated[str | None, Meta(description="only files whose name fits, such as *.py")] = None
    limit: Annotated[int, Meta(description="how many matches at most", ge=1, le=1000)] = 100


class Match(msgspec.Struct, frozen=True):
    """One line found."""

    path: str
    line: int
    text: str


def reading_tools(files: Files) -> list[Tool]:  # type: ignore[type-arg]
    """read, list and search on the session's files."""
    workspace = files.policy.workspace

    async def read(args: ReadArguments, report: Report) -> ToolResult:
        file = TextFile.decode(await asyncio.to_thread(files.read, files.locate(args.path)), args.path)
        chosen = file.lines[args.start - 1 : args.start - 1 + args.lines]
        if not chosen and file.lines:
            raise FulgurError(f"{args.path} has {len(file.lines)} lines")
        shown: list[str] = []
        size = 0
        for number, line in enumerate(chosen, args.start):
            text = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}… ({len(line)} characters)"
            shown.append(f"{number:>5}\t{text}")
            size += len(shown[-1])
            if size > _MOST_CHARACTERS:
                break
        last = args.start - 1 + len(shown)
        if last < len(file.lines):
            shown.append(f"[{len(file.lines)} lines in all; go on with start={last + 1}]")
        return ToolResult(True, "\n".join(shown) or "[the file is empty]")

    async def list_folder(args: ListArguments, report: Report) -> ToolResult:
        folder = files.locate(args.path)
        if not folder.is_dir():
            raise FulgurError(f"{args.path} is not a folder")
        lines = await asyncio.to_thread(_tree, folder, workspace, args.depth)
        return ToolResult(True, "\n".join(lines) or "[empty]")

    async def search(args: SearchArguments, report: Report) -> ToolResult:
        start = files.locate(args.path)
        if not start.exists():
            raise FulgurError(f"{args.path} does not exist")
        found = await search_text(args.pattern, start, workspace, args.glob, args.limit + 1)
        lines = [f"{match.path}:{match.line}: {match.text}" for match in found[: args.limit]]
        if len(found) > args.limit:
            lines.append(f"[more than {args.limit} matches: narrow it down]")
        return ToolResult(True, "\n".join(lines) or "[no match]")

    return [
        Tool("read", "Read a text file, with line numbers.", ReadArguments, read, lambda a: f"read {a.path}"),
        Tool(
            "list", "List a folder; ignored files are left out.", ListArguments, list_folder, lambda a: f"list {a.path}"
        ),
        Tool(
            "search",
            "Search file contents by regular expression; ignored files are left out.",
            SearchArguments,
            search,
            lambda a: f"search {a.pattern!r}" + ("" if a.path == "." else f" in {a.path}"),
        ),
    ]


def _tree(folder: Path, root: Path, depth: int) -> list[str]:
    rules = IgnoreRules(root if folder.is_relative_to(root) else folder)
    lines: list[str] = []

    def visit(current: Path, level: int) -> None:
        for entry in sorted(os.scandir(current), key=lambda e: (not e.is_dir(follow_symlinks=False), e.name)):
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name in SKIPPED or rules.ignored(Path(entry.path), folder=is_folder):
                continue
            if len(lines) >= _MOST_ENTRIES:
                return
            lines.append(f"{'  ' * level}{entry.name}{'/' if is_folder else ''}")
            if is_folder and level + 1 < depth:
                visit(Path(entry.path), level + 1)

    visit(folder, 0)
    if len(lines) >= _MOST_ENTRIES:
        lines.append(f"[cut after {_MOST_ENTRIES} entries: list a folder below]")
    return lines


async def search_text(pattern: str, start: Path, root: Path, glob: str | None, limit: int) -> list[Match]:
    """Matching lines in order of path: by ripgrep where it is installed, else by ourselves."""
    program = shutil.which("rg")
    if program is None:
        return await asyncio.to_thread(lambda: list(_search_plain(pattern, start, root, glob, limit)))
    # The same files as `ignore.walk`: hidden ones too, rules also outside of a repository, the skipped folders never.
    command = [program, "--no-config", "--hidden", "--no-require-git", "--no-ignore-global", "--sort=path", "--null"]
    command += ["--line-number", "--no-heading", "--with-filename", "--color=never", f"--max-columns={_LONGEST_LINE}"]
    command += ["--max-columns-preview", *(["--glob", glob] if glob else [])]
    for name in sorted(SKIPPED):
        command += ["--glob", f"!**/{name}/**"]
    command += ["-e", pattern, "--", str(start)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await process.communicate()
    if process.returncode not in (0, 1):
        raise FulgurError(f"search: {errors.decode(errors='replace').strip()}")
    found = []
    for raw in out.decode(errors="replace").split("\n"):
        name, _, rest = raw.partition("\0")
        number, _, text = rest.partition(":")
        if number.isdigit():
            found.append(Match(_shown(Path(name), root), int(number), text))
            if len(found) >= limit:
                break
    return found


def _search_plain(pattern: str, start: Path, root: Path, glob: str | None, limit: int) -> Iterator[Match]:
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise FulgurError(f"{pattern!r} is not a regular expression: {error}") from None
    paths = (
        [start]
        if start.is_file()
        else (Path(e.path) for e in walk(root if start.is_relative_to(root) else start, start=start))
    )
    count = 0
    for path in paths:
        if glob and not fnmatch.fnmatch(path.name, glob):
            continue
        try:
            data = path.read_bytes()
        except OSError:
            continue
        if b"\0" in data[:8192]:
            continue
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), 1):
            if regex.search(line):
                yield Match(_shown(path, root), number, line[:_LONGEST_LINE])
                count += 1
                if count >= limit:
                    return


def _shown(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
