"""`fulgur complete FILE:LINE:COL`: what the embedded model would type at the cursor, to the end of the line."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from fulgur.errors import UsageError
from fulgur.ui.commands.edit import add_common
from fulgur.ui.foreign import note, out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="FILE:LINE:COL", help="the cursor; both counted from 1")
    parser.add_argument("--max-tokens", type=int, default=96, metavar="N", help="at most this many tokens (default 96)")
    parser.add_argument(
        "--lines", action="store_true", help="several lines, up to the text after the cursor (much less often right)"
    )
    parser.add_argument("--unsure", action="store_true", help="the whole guess, even where the model is not sure")
    add_common(parser, None)


def run(args: argparse.Namespace) -> int:
    from fulgur.edit.complete import complete
    from fulgur.edit.document import Document
    from fulgur.edit.model import Model

    match = re.fullmatch(r"(.+):(\d+):(\d+)", args.target)
    if match is None:
        raise UsageError(f"{args.target!r} is not FILE:LINE:COL", hint="fulgur complete app.py:12:9")
    if args.max_tokens < 1:
        raise UsageError("--max-tokens must be at least 1")
    document = Document.open((args.cd or Path()) / match[1])
    line, column = int(match[2]), int(match[3])
    model, one_line = Model(args.model), not args.lines
    answer = complete(document, line, column, model, args.max_tokens, one_line=one_line, unsure=args.unsure)
    guess = ""
    if not answer.text and one_line and not args.unsure:  # the person asked: a guess is better than nothing
        answer = complete(document, line, column, model, args.max_tokens, one_line=True, unsure=True)
        guess = "a guess, which an editor would not show · "
    if answer.text:
        out(answer.text, end="" if answer.text.endswith("\n") else "\n")
        note(guess + answer.speed() + ("" if answer.finished else " · cut off at --max-tokens"))
    else:
        note("nothing to suggest here")
    return 0
