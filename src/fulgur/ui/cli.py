"""The `fulgur` command: one table of commands, each in its own module and imported only when it is called.

A command module (`fulgur/ui/commands/NAME.py`) has two functions:
    add_arguments(parser: argparse.ArgumentParser) -> None
    run(args: argparse.Namespace) -> int
Start-up stays short because nothing but the chosen module is loaded.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from fulgur import __version__
from fulgur.errors import FulgurError

# name -> one line of help. The module is fulgur.ui.commands.NAME.
COMMANDS: dict[str, str] = {
    "exec": "work on a prompt without a screen, for scripts and CI",
    "ask": "which file owns X? from the symbol index, without a model",
    "config": "show, check, trust or import the configuration",
    "demo": "walk through a completion and an edit, with the speeds",
    "bench": "measure this machine: engine",
    "doctor": "what this machine can do, and which kernels are used",
}


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser for one command line; only the chosen command's module is imported."""
    parser = argparse.ArgumentParser(prog="fulgur", description="Real-time coding on your own hardware.")
    parser.add_argument("--version", action="version", version=f"fulgur {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in COMMANDS.items():
        sub = subparsers.add_parser(name, help=text, description=text)
        if name == command:
            importlib.import_module(f"fulgur.ui.commands.{name}").add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; exit codes: 0 done, 1 the work failed, 2 wrong use, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if not word.startswith("-")), None)
    parser = build_parser(command)
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 2
    try:
        return int(importlib.import_module(f"fulgur.ui.commands.{args.command}").run(args))
    except FulgurError as error:
        print(f"fulgur: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader went away (`fulgur … | head`): silence the interpreter's own flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
