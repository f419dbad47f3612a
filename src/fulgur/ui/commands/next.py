"""`fulgur next FILE`: after the last change of a file, the edits that probably follow from it."""

from __future__ import annotations

import argparse
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.ui.commands.edit import add_common, members_of, show
from fulgur.ui.foreign import note


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="FILE", help="the file that was just changed")
    add_common(parser, "make the edits (the diff is shown either way)")


def run(args: argparse.Namespace) -> int:
    from fulgur.edit.document import Document
    from fulgur.edit.editor import Refusal
    from fulgur.edit.model import Model
    from fulgur.edit.next import plan_next
    from fulgur.edit.project.follow import project_root
    from fulgur.workspace.folders import home
    from fulgur.workspace.journal import EditJournal

    document = Document.open((args.cd or Path()) / args.target)
    with members_of(document.path, args.write) as members:
        result, answer = plan_next(document, EditJournal(home()), Model(args.model), members)
    if isinstance(result, Refusal):
        if result.check:
            raise FulgurError(f"the next edits are wrong: {result.reason}; nothing was changed")
        note(result.reason)
    else:
        return show(result, answer, args.write, project_root(document.path))
    return 0
