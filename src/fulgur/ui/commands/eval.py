"""`fulgur eval NAME`: grade models and the editor. Each evaluation is a module that is imported only when called.

An evaluation module has two functions:
    add_arguments(parser: argparse.ArgumentParser) -> None
    run(args: argparse.Namespace) -> list of rows with at least `name`, `value` and `unit`
`--json` is common to all of them and is handled here.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

from fulgur.errors import UsageError
from fulgur.ui.parser import Parser, listed, need_folders

# name -> (module, one line of help)
EVALUATIONS: dict[str, tuple[str, str]] = {
    "model": ("fulgur.eval.model", "completions and edits of the embedded models on held-out code, beside baselines"),
    "edits": ("fulgur.eval.edits", "instructions in developers' own words, carried out and checked in real projects"),
    "agent": ("fulgur.eval.agent", "repositories with failing tests, features and a game, worked by the agent"),
    "swebench": ("fulgur.eval.adapters.swebench", "the agent's predictions for SWE-bench's harness"),
    "polyglot": ("fulgur.eval.adapters.polyglot", "Aider's polyglot exercises, worked by the agent in two tries"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the evaluation's name; the remaining arguments belong to the evaluation."""
    parser.epilog = listed("evaluations", {name: text for name, (_, text) in EVALUATIONS.items()})
    parser.add_argument("name", choices=list(EVALUATIONS), metavar="NAME", help="the evaluation to run")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="`fulgur eval NAME --help` lists them")


def run(args: argparse.Namespace) -> int:
    """Run one evaluation; the exit code is 0 whenever it could grade (a missed bar is shown, not an error)."""
    name, text = EVALUATIONS[args.name]
    module = importlib.import_module(name)
    parser = Parser(f"fulgur eval {args.name}", description=text)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine and rows as JSON")
    module.add_arguments(parser)
    options = parser.parse_whole(args.options)
    need_folders(options.json, getattr(options, "answers", None))
    # Rerunning a part (`--only`) keeps the rows of the rest.
    earlier = read_rows(options.json) if options.json is not None and getattr(options, "only", None) else []
    rows = module.run(options)
    if options.json is not None:
        from fulgur.bench.report import machine

        made = {row["name"] for row in rows}
        rows = [row for row in earlier if row["name"] not in made] + rows
        text = json.dumps({"machine": machine(), "rows": rows}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of an earlier evaluation; [] if there was none."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return [row for row in rows if row["name"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: not the rows of an evaluation: {error}", hint="Name another file.") from None
