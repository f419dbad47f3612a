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
from fulgur.ui.foreign import note

# name -> one line of help. The module is fulgur.ui.commands.NAME.
COMMANDS: dict[str, str] = {
    "exec": "work on a prompt without a screen, for scripts and CI",
    "ask": "which file owns X? from the symbol index, without a model",
    "config": "show, check, trust or import the configuration",
    "serve": "serve models on this machine: the Responses API over HTTP and WebSocket",
    "connect": "point another client at this server: codex",
    "edit": "change a part of a file by an instruction, with the embedded model",
    "complete": "what the embedded model would type at a cursor",
    "next": "the edits that follow from the last change of a file",
    "demo": "walk through a completion and an edit, with the speeds",
    "bench": "measure this machine: engine",
    "eval": "grade the embedded models on held-out code",
    "doctor": "what this machine can do, and which kernels are used",
}


# Flags that take a value and may stand before the command.
GLOBAL_FLAGS = ("-m", "--model", "-p", "--profile", "-c", "--config", "-C", "--cd")


def find_command(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The command, and the arguments with the global flags moved behind it, where its own parser reads them."""
    index = 0
    while index < len(arguments) and arguments[index].startswith("-") and arguments[index] != "--resume":
        index += 2 if arguments[index] in GLOBAL_FLAGS else 1
    if index >= len(arguments) or arguments[index] == "--resume":
        return None, arguments
    return arguments[index], [arguments[index], *arguments[:index], *arguments[index + 1 :]]


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser for one command line; only the chosen command's module is imported."""
    parser = argparse.ArgumentParser(prog="fulgur", description="Real-time coding on your own hardware.")
    parser.add_argument("--version", action="version", version=f"fulgur {__version__}")
    if command is None:
        importlib.import_module("fulgur.ui.commands.tui").add_arguments(parser)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in COMMANDS.items():
        sub = subparsers.add_parser(name, help=text, description=text)
        if name == command:
            importlib.import_module(f"fulgur.ui.commands.{name}").add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; exit codes: 0 done, 1 the work failed, 2 wrong use, 130 interrupted."""
    command, arguments = find_command(list(sys.argv[1:] if argv is None else argv))
    parser = build_parser(command)
    args = parser.parse_args(arguments)
    if command is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        parser.print_help()
        return 2
    try:
        return int(importlib.import_module(f"fulgur.ui.commands.{command or 'tui'}").run(args))
    except FulgurError as error:
        note(f"fulgur: {error}")
        return error.exit_code
    except BrokenPipeError:
        # The reader went away (`fulgur … | head`): silence the interpreter's own flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # A full disk, a folder that may not be read: nothing a traceback would help with.
        note(f"fulgur: {error.filename + ': ' if isinstance(error.filename, str) else ''}{error.strerror or error}")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
