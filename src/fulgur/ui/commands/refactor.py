"""`fulgur refactor KIND FILE:NAME …`: a named refactoring over the whole project, without a model."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fulgur.errors import FulgurError, UsageError
from fulgur.ui.flags import folder
from fulgur.ui.parser import listed

if TYPE_CHECKING:
    from fulgur.text.edit_format import Call


@dataclass(frozen=True)
class Kind:
    """What one refactoring takes besides the place: `words` for the usage line, `call` to build the call from the
    symbol and the words."""

    words: tuple[str, ...]
    call: Callable[[str, list[str]], tuple[str, ...]]
    place: str = "FILE:NAME"  # its syntax; FILE:NAME means that a symbol is required

    @property
    def symbol(self) -> bool:
        """Whether the place must name a symbol."""
        return self.place == "FILE:NAME"


KINDS: dict[str, Kind] = {
    "rename": Kind(("NEW",), lambda symbol, words: ("rename", symbol, words[0])),
    "move": Kind(("MODULE",), lambda symbol, words: ("move_symbol", symbol, words[0])),
    "async": Kind((), lambda symbol, words: ("make_async", f"@{symbol}")),
    "extract": Kind(("NAME",), lambda symbol, words: ("extract_function", words[0]), "FILE:A-B"),
    "inline": Kind(("VARIABLE",), lambda symbol, words: ("inline", words[0]), "FILE[:NAME]"),
    "inline-function": Kind((), lambda symbol, words: ("inline_function", symbol)),
    "add-parameter": Kind(("NAME=DEFAULT",), lambda symbol, words: ("add_parameter", _last(symbol), words[0])),
    "remove-parameter": Kind(("NAME",), lambda symbol, words: ("remove_parameter", _last(symbol), words[0])),
    "rename-parameter": Kind(("OLD", "NEW"), lambda symbol, words: ("rename_parameter", _last(symbol), *words)),
}


def _last(symbol: str) -> str:
    return symbol.rpartition(".")[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = listed("kinds", {name: " ".join((kind.place, *kind.words)) for name, kind in KINDS.items()})
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help="which one; they are listed below")
    parser.add_argument("target", metavar="FILE[:SYMBOL|:A-B]", help="what it is about; lines for extract")
    parser.add_argument("words", nargs="*", metavar="WORD", help="the new name, the module to move to, the parameter")
    parser.add_argument("--write", action="store_true", help="change the files (the diff is shown either way)")
    parser.add_argument("-C", "--cd", metavar="DIR", type=folder, help="work in this folder")


def run(args: argparse.Namespace) -> int:
    from fulgur.edit.document import Document
    from fulgur.edit.editor import Refusal, Task, propose
    from fulgur.edit.project.follow import project_root
    from fulgur.edit.region import locate_region, parse_target
    from fulgur.ui.commands.edit import members_of, show

    kind = KINDS[args.kind]
    if len(args.words) != len(kind.words):
        usage = f"fulgur refactor {args.kind} {kind.place} {' '.join(kind.words)}"
        raise UsageError(f"{args.kind} takes {' and '.join(kind.words) or 'nothing'} after the place", hint=usage)
    target = parse_target(args.target, args.cd or Path())
    if kind.symbol and target.symbol is None:
        raise UsageError(
            f"{args.target} names no symbol", hint=f"Write {target.path}:NAME or {target.path}:CLASS.METHOD."
        )
    document = Document.open(target.path)
    region = locate_region(document.text, target, limit=False)
    task = Task(document, region, None, root=project_root(target.path))
    with members_of(document.path, args.write) as members:
        result = propose(task, _call(kind, target.symbol or "", args.words), members)
    if isinstance(result, Refusal):
        raise FulgurError(f"nothing was changed: {result.reason}")
    return show(result, None, args.write, task.root)


def _call(kind: Kind, symbol: str, words: list[str]) -> Call:
    from fulgur.text.edit_format import Call

    name, *rest = kind.call(symbol, words)
    return Call(name, tuple(rest))
