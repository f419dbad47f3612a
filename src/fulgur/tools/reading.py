"""The read-only tools: read, list and search."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fulgur.errors import FulgurError
from fulgur.protocol.agent import Location
from fulgur.sandbox import start as begin
from fulgur.tools.base import Arguments, Report, Tool, ToolResult
from fulgur.workspace.beneath import shown
from fulgur.workspace.files import Files
from fulgur.workspace.ignore import SKIPPED, IgnoreRules
from fulgur.workspace.textfile import TextFile

_MOST_CHARACTERS = 40_000
_LONGEST_LINE = 500
_MOST_ENTRIES = 400
_MOST_SECONDS = 20.0


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
    """Build read, list and search for the session's files."""
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
        if reason := files.policy.secret(folder):
            raise FulgurError(f"{args.path} may not be read: {reason}")
        if not folder.is_dir():
            raise FulgurError(f"{args.path} is not a folder")
        lines = await asyncio.to_thread(_tree, folder, workspace, args.depth)
        return ToolResult(True, "\n".join(lines) or "[empty]")

    async def search(args: SearchArguments, report: Report) -> ToolResult:
        start = files.locate(args.path)
        if not start.exists():
            raise FulgurError(f"{args.path} does not exist")
        found = await search_text(args.pattern, start, workspace, args.glob, args.limit + 1, files.policy.hidden)
        lines = [f"{match.path}:{match.line}: {match.text}" for match in found[: args.limit]]
        if len(found) > args.limit:
            lines.append(f"[more than {args.limit} matches: narrow it down]")
        return ToolResult(True, "\n".join(lines) or "[no match]")

    return [
        Tool(
            "read",
            "Read a text file, with line numbers.",
            ReadArguments,
            read,
            lambda a: f"read {a.path}",
            kind="read",
            places=lambda a: [Location(a.path, a.start)],
        ),
        Tool(
            "list",
            "List a folder; ignored files are left out.",
            ListArguments,
            list_folder,
            lambda a: f"list {a.path}",
            kind="search",
        ),
        Tool(
            "search",
            "Search file contents by regular expression; ignored files are left out.",
            SearchArguments,
            search,
            lambda a: f"search {a.pattern!r}" + ("" if a.path == "." else f" in {a.path}"),
            kind="search",
        ),
    ]


def _tree(folder: Path, root: Path, depth: int) -> list[str]:
    rules = IgnoreRules(root if folder.is_relative_to(root) else folder)
    lines: list[str] = []

    def visit(current: Path, level: int) -> None:
        try:
            entries = list(os.scandir(current))
        except OSError:
            return
        for entry in sorted(entries, key=lambda e: (not e.is_dir(follow_symlinks=False), e.name)):
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name in SKIPPED or rules.ignored(Path(entry.path), folder=is_folder):
                continue
            if len(lines) >= _MOST_ENTRIES:
                return
            lines.append(f"{'  ' * level}{shown(entry.name)}{'/' if is_folder else ''}")
            if is_folder and level + 1 < depth:
                visit(Path(entry.path), level + 1)

    visit(folder, 0)
    if len(lines) >= _MOST_ENTRIES:
        lines.append(f"[cut after {_MOST_ENTRIES} entries: list a folder below]")
    return lines


async def search_text(
    pattern: str, start: Path, root: Path, glob: str | None, limit: int, hidden: Sequence[Path] = ()
) -> list[Match]:
    """Find matching lines, ordered by path and none from `hidden`, with ripgrep if it is installed, else with ours."""
    program = begin.program("rg", root)
    out = await (_plain if program is None else _ripgrep)(program or "", pattern, start, root, glob, limit, hidden)
    found = []
    for name, number, text in out:
        path = Path(name)
        if not any(path.is_relative_to(place) for place in hidden):
            found.append(Match(shown(str(path.relative_to(root) if path.is_relative_to(root) else path)), number, text))
            if len(found) >= limit:
                break
    return found


async def _ripgrep(
    program: str, pattern: str, start: Path, root: Path, glob: str | None, limit: int, hidden: Sequence[Path]
) -> Iterator[tuple[str, int, str]]:
    # Search the same files as `ignore.walk`: hidden ones too, ignore rules also outside a repository, never the skipped
    # folders.
    command = [program, "--no-config", "--hidden", "--no-require-git", "--no-ignore-global", "--sort=path", "--null"]
    command += ["--line-number", "--no-heading", "--with-filename", "--color=never", f"--max-columns={_LONGEST_LINE}"]
    command += ["--max-columns-preview", *(["--glob", glob] if glob else [])]
    for name in sorted(SKIPPED):
        command += ["--glob", f"!**/{name}/**"]
    out = await _output([*command, "-e", pattern, "--", str(start)], b"", (0, 1))

    def parsed() -> Iterator[tuple[str, int, str]]:
        for raw in out.split(b"\n"):
            name, _, rest = raw.partition(b"\0")
            number, _, text = rest.partition(b":")
            if number.isdigit():
                yield os.fsdecode(name), int(number), text.decode(errors="replace")

    return parsed()


async def _plain(
    program: str, pattern: str, start: Path, root: Path, glob: str | None, limit: int, hidden: Sequence[Path]
) -> Iterator[tuple[str, int, str]]:
    request = {"pattern": pattern, "start": str(start), "root": str(root), "glob": glob, "limit": limit}
    more = {"longest": _LONGEST_LINE, "hidden": [str(place) for place in hidden]}
    out = await _output(begin.python("fulgur.tools.plain_search"), json.dumps({**request, **more}).encode(), (0,))
    found = [json.loads(line) for line in out.splitlines()]
    for match in found:
        if isinstance(match, dict):
            raise FulgurError(match["error"])
    return iter(found)


async def _output(command: list[str], data: bytes, good: Sequence[int]) -> bytes:
    """Return what a search printed; kill it if it takes too long."""
    process = await begin.spawn(command, begin.ROOT, stdin=begin.PIPE, stdout=begin.PIPE, stderr=begin.PIPE)
    try:
        async with asyncio.timeout(_MOST_SECONDS):
            out, errors = await process.communicate(data)
    except TimeoutError:
        raise FulgurError(
            f"the search took over {_MOST_SECONDS:g} s and was stopped", hint="Search a folder below, or simplify it."
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode not in good:
        raise FulgurError(f"search: {errors.decode(errors='replace').strip()[-400:]}")
    return out
