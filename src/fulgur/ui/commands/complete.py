"""`fulgur complete FILE:LINE:COL`: what the embedded model would type at the cursor, to the end of the line."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from fulgur.errors import FulgurError, UsageError

PREFIX_CHARS = 3600
SUFFIX_CHARS = 1200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="FILE:LINE:COL", help="the cursor; both counted from 1")
    parser.add_argument("--max-tokens", type=int, default=96, metavar="N", help="at most this many tokens (default 96)")
    parser.add_argument(
        "--lines", action="store_true", help="several lines, up to the text after the cursor (much less often right)"
    )
    parser.add_argument(
        "-m", "--model", metavar="MODEL", help="an embedded model by name (60M, 30M), or a model folder"
    )
    parser.add_argument("-C", "--cd", metavar="DIR", type=Path, help="work in this folder")


def cursor(text: str, line: int, column: int, name: str) -> int:
    """The offset of a cursor; past the end of a line is an error that says where it ends."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        raise FulgurError(f"{name} has {len(lines)} lines, there is no line {line}")
    if not 1 <= column <= len(lines[line - 1]) + 1:
        raise FulgurError(
            f"line {line} of {name} ends at column {len(lines[line - 1]) + 1}, there is no column {column}"
        )
    return sum(len(before) + 1 for before in lines[: line - 1]) + column - 1


def around(text: str, offset: int) -> tuple[str, str]:
    """What stands before and after the cursor, in whole lines at the far ends."""
    start = max(0, offset - PREFIX_CHARS)
    if start > 0:
        start = text.find("\n", start, offset) + 1 or start
    end = min(len(text), offset + SUFFIX_CHARS)
    if end < len(text):
        end = text.rfind("\n", offset, end) + 1 or end
    return text[start:offset], text[offset:end]


def run(args: argparse.Namespace) -> int:
    from fulgur.edit.embedded import Embedded
    from fulgur.ui.commands.edit import Document

    match = re.fullmatch(r"(.+):(\d+):(\d+)", args.target)
    if match is None:
        raise UsageError(f"{args.target!r} is not FILE:LINE:COL", hint="fulgur complete app.py:12:9")
    if args.max_tokens < 1:
        raise UsageError("--max-tokens must be at least 1")
    document = Document.open(args.cd or Path(), match[1])
    offset = cursor(document.text, int(match[2]), int(match[3]), document.name)
    prefix, suffix = around(document.text, offset)
    model = Embedded.open(args.model)
    ask = model.completion(document.name, prefix, suffix, args.max_tokens, one_line=not args.lines)
    [reply] = model.ask([ask])
    sys.stdout.write(reply.text)
    if not reply.text.endswith("\n"):
        sys.stdout.write("\n")
    sys.stdout.flush()
    print(reply.speed() + ("" if reply.finished else " · cut off at --max-tokens"), file=sys.stderr)
    return 0
