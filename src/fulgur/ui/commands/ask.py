"""`fulgur ask QUESTION`: which file owns X? With file:line, at once, without a model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fulgur.errors import FulgurError, UsageError
from fulgur.ui.flags import at_least_one, folder
from fulgur.ui.foreign import out, out_json, whole_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ask."""
    parser.add_argument("question", nargs="+", help="a name, or a question such as: which file owns the KV cache?")
    parser.add_argument("-n", metavar="N", type=at_least_one, default=10, help="how many places (default 10)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("-C", "--cd", metavar="DIR", type=folder, help="the folder to look in")


def run(args: argparse.Namespace) -> int:
    """Exit code 0 if a place was found, 1 if none."""
    from fulgur.workspace import folders
    from fulgur.workspace.ask import answer
    from fulgur.workspace.symbols import SymbolIndex

    question = whole_text(" ".join(args.question)).strip()
    if not question:
        raise UsageError("ask needs a name or a question", hint='fulgur ask "which file owns the cache?"')
    workspace = (args.cd or Path.cwd()).resolve()
    index = SymbolIndex(workspace, folders.home())
    index.refresh()
    places = answer(question, index, args.n)
    if not places:
        raise FulgurError(f"nothing in {workspace} matches {question!r}", hint="Try the name of a function or a class.")
    wide = max(len(f"{place.path}:{place.line}") for place in places)
    for place in places:
        if args.json:
            fields = {"path": place.path, "line": place.line, "kind": place.kind, "what": place.what}
            out_json(json.dumps(fields))
        else:
            out(f"{f'{place.path}:{place.line}':<{wide}}  {place.kind:<8}  {place.what}")
    return 0
