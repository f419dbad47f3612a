"""`fulgur edit FILE[:SYMBOL|:A-B] INSTRUCTION`: the embedded model rewrites a region, or calls a refactoring."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from fulgur.errors import FulgurError, UsageError
from fulgur.ui.flags import folder
from fulgur.ui.foreign import note, out, out_diff, whole_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fulgur.edit.checks.members.process import MemberCheck
    from fulgur.edit.editor import Proposal
    from fulgur.edit.model import Answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", nargs="?", metavar="FILE[:SYMBOL|:A-B]", help="the file, and which part of it")
    parser.add_argument("instruction", nargs="?", help="what to change, in a few words")
    parser.add_argument("--undo", action="store_true", help="undo the last written edit, byte for byte")
    add_common(parser, "change the file (the diff is shown either way)")


def add_common(parser: argparse.ArgumentParser, write: str | None) -> None:
    """Add the flags that edit, next and complete share."""
    if write is not None:
        parser.add_argument("--write", action="store_true", help=write)
    parser.add_argument(
        "-m", "--model", metavar="MODEL", help="an embedded model (fulgur-60m, fulgur-30m), or a model folder"
    )
    parser.add_argument("-C", "--cd", metavar="DIR", type=folder, help="work in this folder")


def run(args: argparse.Namespace) -> int:
    from fulgur.edit.region import parse_target

    base = args.cd or Path()
    if args.undo:
        from fulgur.workspace.folders import home
        from fulgur.workspace.journal import EditJournal

        for entry in EditJournal(home()).undo(parse_target(args.target, base).path if args.target else None):
            out(f"{entry.path} is restored to what it was before the edit.")
        return 0
    if not args.target or not args.instruction:
        raise UsageError("edit needs a file and an instruction", hint='fulgur edit app.py:load "add type hints"')
    from fulgur.edit.editor import AS_ASKED, NOTHING, Refusal, locate, plan
    from fulgur.edit.model import ABILITIES, BIGGER, Model

    task = locate(parse_target(args.target, base), whole_text(args.instruction))
    with members_of(task.document.path, args.write) as members:
        result, answer = plan(task, Model(args.model), members)
    if isinstance(result, Refusal):
        kind = "no edit" if result.check in (NOTHING, AS_ASKED) else "the edit would be wrong"
        hint = BIGGER if answer is None else f"It can {ABILITIES}.\n  {BIGGER}"
        raise FulgurError(f"{kind}: {result.reason}; nothing was changed", hint=hint)
    return show(result, answer, args.write, task.root)


@contextlib.contextmanager
def members_of(path: Path, write: bool) -> Iterator[MemberCheck | None]:
    """Check the members of what is written too; the checker's process starts while the model answers."""
    if not write:
        yield None
        return
    from fulgur.edit.editor import member_check
    from fulgur.workspace.folders import home

    members = member_check(path, home())
    try:
        with contextlib.suppress(FulgurError, OSError):  # reported when there is something to check
            members.warm()
        yield members
    finally:
        members.close()


def show(proposal: Proposal, answer: Answer | None, write: bool, root: Path | None) -> int:
    """Show what was understood, the diff, the notes and the speeds; with `write`, write the files too. Return the exit
    code: 1 if tests of the project at `root` fail because of it."""
    from fulgur.workspace.diff import unified

    document = proposal.document
    if proposal.understood:
        note(f"Understood: {proposal.understood}.")
    for changed, text in ((document, proposal.text), *proposal.others):
        out_diff(unified(changed.text, text, changed.name, new=not changed.path.exists()))
    for remark in proposal.notes:
        note(remark)
    if answer is not None:
        note(answer.speed())
    if not write:
        from fulgur.edit.checks.verdict import verdict

        note(f"{verdict(proposal.found, None).line}. Nothing was written.")
        return 0
    from fulgur.agent.session.undo_store import prune_when_due
    from fulgur.config.settings import load_settings
    from fulgur.edit.editor import write as write_file
    from fulgur.workspace.folders import home
    from fulgur.workspace.journal import EditJournal

    fine = tell_tests(proposal, root)
    write_file(proposal, EditJournal(home()))
    also = f" and {len(proposal.others)} more" if proposal.others else ""
    note(f"Written to {document.path}{also}; `fulgur edit --undo` undoes it.")
    if pruned := prune_when_due(load_settings()):
        note(str(pruned))
    return 0 if fine else 1


def tell_tests(proposal: Proposal, root: Path | None) -> bool:
    """Try the edit with the tests that cover it and report the outcome; False if it makes some fail."""
    from fulgur.config.records import ProjectRecords
    from fulgur.config.settings import find_project
    from fulgur.edit.checks.trial import Trial, try_out
    from fulgur.edit.checks.verdict import verdict
    from fulgur.workspace.folders import home

    if root is None or proposal.document.path.suffix != ".py":
        trial = Trial(note="tests not run: this is not a file of a Python project")
    elif ProjectRecords(home()).trusted(find_project(root, home())) is not True:
        trial = Trial(note="tests not run: this project is not trusted (`fulgur config trust` trusts it)")
    else:
        trial = try_out(root, proposal.changes(), home())
    for problem in trial.problems:
        note(f"✗ tests fail since: {problem}")
    if trial.note and (trial.problems or trial.passed):
        note(f"{trial.note[0].upper()}{trial.note[1:]}.")
    if not trial.problems:
        note(f"{verdict(proposal.found, trial).line}.")
    return not trial.problems
