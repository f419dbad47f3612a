"""`fulgur edit FILE[:SYMBOL|:A-B] INSTRUCTION`: the embedded model rewrites a region, or calls a refactoring."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fulgur.errors import FulgurError, UsageError

if TYPE_CHECKING:
    from fulgur.edit.embedded import Reply
    from fulgur.edit.region import Region, Target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", nargs="?", metavar="FILE[:SYMBOL|:A-B]", help="the file, and which part of it")
    parser.add_argument("instruction", nargs="?", help="what to change, in a few words")
    parser.add_argument("--write", action="store_true", help="change the file (the diff is shown either way)")
    parser.add_argument("--undo", action="store_true", help="take the last written edit back, byte for byte")
    parser.add_argument(
        "-m", "--model", metavar="MODEL", help="an embedded model by name (60M, 30M), or a model folder"
    )
    parser.add_argument("-C", "--cd", metavar="DIR", type=Path, help="work in this folder")


def run(args: argparse.Namespace) -> int:
    from fulgur.edit.region import parse_target

    base = args.cd or Path()
    if args.undo:
        return undo(parse_target(args.target, base).path if args.target else None)
    if not args.target or not args.instruction:
        raise UsageError("edit needs a file and an instruction", hint='fulgur edit app.py:load "add type hints"')
    from fulgur.edit.embedded import Embedded

    document = Document.open(base, args.target)
    region = document.locate(args.instruction)
    model = Embedded.open(args.model)
    ask = model.edit(document.name, region.above, region.text, region.below, args.instruction)
    [reply] = model.ask([ask])
    changed = document.after(region, reply, args.instruction)
    show(document, changed, reply, args.write)
    return 0


@dataclass(frozen=True)
class Document:
    """A file on disk, and its text with line feeds only."""

    path: Path
    name: str
    data: bytes
    text: str
    target: Target

    @classmethod
    def open(cls, base: Path, target: str) -> Document:
        from fulgur.edit.region import parse_target
        from fulgur.workspace.journal import plain_text, read
        from fulgur.workspace.textfile import TextFile

        parsed = parse_target(target, base)
        data = read(parsed.path)
        file = TextFile.decode(data, str(parsed.path))
        return cls(parsed.path, shown(parsed.path), data, plain_text(file), parsed)

    def locate(self, instruction: str) -> Region:
        from fulgur.edit.region import locate

        return locate(self.text, self.target, instruction)

    def after(self, region: Region, reply: Reply, instruction: str = "") -> str:
        """The text after the model's answer; an error, and nothing changed, for an answer that cannot be used."""
        from fulgur.edit.answer import Refused, apply_answer
        from fulgur.edit.embedded import ABILITIES, BIGGER
        from fulgur.edit.refactor.verify import undefined

        if not reply.finished:
            raise FulgurError(
                "the model's answer was cut off; nothing was changed", hint=f"Name a smaller part. {BIGGER}"
            )
        try:
            outcome = apply_answer(self.text, region, reply.text, instruction, self.path)
        except Refused as refused:
            raise FulgurError(
                f"the model's answer is not what was asked: {refused.message}; nothing was changed", hint=BIGGER
            ) from None
        if outcome.text is None:
            why = outcome.note or "this is done already, or it is beyond the embedded model"
            raise FulgurError(
                f"no edit: {why}; nothing was changed",
                hint=f"It can: {ABILITIES}.\n  {BIGGER}",
            )
        problem = broken(self.path, self.text, outcome.text)
        if problem:
            raise FulgurError(f"the model's answer does not parse ({problem}); nothing was changed", hint=BIGGER)
        missing = undefined(outcome.text, self.text) if self.path.suffix in (".py", ".pyi") else []
        if missing:
            print(f"Note: nothing in the file defines or imports {', '.join(missing)}.", file=sys.stderr)
        if outcome.note:
            print(outcome.note, file=sys.stderr)
        return outcome.text


def shown(path: Path) -> str:
    """The path as the model sees it: relative, with forward slashes."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.name


def broken(path: Path, before: str, after: str) -> str | None:
    """What is wrong with the new text, if the old one was right; None for languages without a check here."""
    check = {".py": parse_python, ".pyi": parse_python, ".json": parse_json, ".toml": parse_toml}.get(path.suffix)
    if check is None or check(before) is not None:
        return None
    return check(after)


def parse_python(text: str) -> str | None:
    import ast

    try:
        ast.parse(text)
    except (SyntaxError, ValueError) as error:
        return f"line {getattr(error, 'lineno', '?')}: {getattr(error, 'msg', error)}"
    return None


def parse_json(text: str) -> str | None:
    import json

    try:
        json.loads(text)
    except ValueError as error:
        return str(error)
    return None


def parse_toml(text: str) -> str | None:
    import tomllib

    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return str(error)
    return None


def show(document: Document, changed: str, reply: Reply, write: bool) -> None:
    """The diff and the speeds; with `write`, the file too."""
    from fulgur.workspace.diff import unified, wants_colour

    sys.stdout.write(unified(document.text, changed, document.name, colour=wants_colour()))
    sys.stdout.flush()
    print(reply.speed(), file=sys.stderr)
    if not write:
        print("Nothing was written; --write changes the file.", file=sys.stderr)
        return
    from fulgur.workspace import folders
    from fulgur.workspace.journal import EditJournal, with_text
    from fulgur.workspace.textfile import TextFile

    file = TextFile.decode(document.data, str(document.path))
    journal = EditJournal(folders.home() / "edits")
    journal.write(document.path, document.data, with_text(file, changed, str(document.path)))
    print(f"Written to {document.path}; `fulgur edit --undo` takes it back.", file=sys.stderr)


def undo(path: Path | None) -> int:
    from fulgur.workspace import folders
    from fulgur.workspace.journal import EditJournal

    entry = EditJournal(folders.home() / "edits").undo(path)
    print(f"{entry.path} is as it was before the edit.")
    return 0
