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
from fulgur.errors import FulgurError, UsageError
from fulgur.ui.foreign import note

# name -> one line of help. The module is fulgur.ui.commands.NAME.
COMMANDS: dict[str, str] = {
    "exec": "work on a prompt without a screen, for scripts and CI",
    "route": 'which model `model = "auto"` would choose for a prompt, and why; nothing is run',
    "tasks": "run a task list, show it, or make one",
    "ask": "which file owns X? from the symbol index, without a model",
    "config": "show, check, trust or import the configuration",
    "serve": "serve models on this machine: the Responses API over HTTP and WebSocket",
    "cluster": "one model on many machines: replicas, and the secret that fronts share with them",
    "simulate": "how many users a cluster bears: first tokens and waits, from measured service times",
    "admin": "the keys of a server, and what each has used",
    "models": "the models on this machine: list, fit, pull, quantize, rm",
    "app": "the web app: sessions side by side, in a browser",
    "host": "run agents for terminals, editors and browsers; started when one is needed",
    "acp": "the agent inside an editor (Agent Client Protocol on stdin and stdout)",
    "attach": "show a session that runs in the host, in this terminal",
    "connect": "point another client at this server: codex",
    "edit": "change a part of a file by an instruction, with the embedded model",
    "refactor": "rename, move, extract, inline, make async, change parameters: exact, over the whole project",
    "complete": "what the embedded model would type at a cursor",
    "next": "the edits that follow from the last change of a file",
    "demo": "walk through a completion and an edit, with the speeds",
    "bench": "measure this machine: engine, server, terminal, editor, cluster",
    "eval": "grade a model: completions and edits, or the agent on failing repositories",
    "doctor": "what this machine can do, and which kernels are used",
}


_DESCRIPTION = """Real-time coding on your own hardware.

  fulgur                        open the terminal UI in this folder
  fulgur "fix the tests"        the same, with a first prompt
  git diff | fulgur exec "..."  one prompt, without a screen
"""

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


def is_prompt(word: str | None) -> bool:
    """Whether the first word is no command but what to do: `fulgur "fix the tests"`."""
    return word is not None and word not in COMMANDS and any(char.isspace() for char in word.strip())


def refuse_unknown(word: str | None) -> None:
    """A word that is no command: name those that look like it, and how to say a prompt of one word."""
    if word is None or word in COMMANDS or is_prompt(word) or word.startswith("-"):
        return
    import difflib

    close = difflib.get_close_matches(word, COMMANDS, n=3)
    meant = f"Did you mean {' or '.join(close)}? " if close else "`fulgur --help` lists them. "
    raise UsageError(f"there is no command {word}", hint=f"{meant}A prompt of one word: fulgur exec {word}")


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser for one command line; only the chosen command's module is imported."""
    parser = argparse.ArgumentParser(
        prog="fulgur", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"fulgur {__version__}")
    if command is None or is_prompt(command):
        importlib.import_module("fulgur.ui.commands.tui").add_arguments(parser)
    if is_prompt(command):
        parser.add_argument("prompt")
        return parser
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    # Making a parser takes longer than a short command does: the others are needed to list them, or to refuse a word.
    for name in [command] if command in COMMANDS else COMMANDS:
        sub = subparsers.add_parser(name, help=COMMANDS[name], description=COMMANDS[name])
        if name == command:
            importlib.import_module(f"fulgur.ui.commands.{name}").add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; exit codes: 0 done, 1 the work failed, 2 wrong use, 130 interrupted."""
    command, arguments = find_command(list(sys.argv[1:] if argv is None else argv))
    screen = sys.stdin.isatty() and sys.stdout.isatty()
    if is_prompt(command) and not screen:
        command, arguments = "exec", ["exec", *arguments]  # `git diff | fulgur "explain this"`
    try:
        refuse_unknown(command)
        parser = build_parser(command)
        args = parser.parse_args(arguments)
        if is_prompt(command):
            command = None
        if command is None and not screen:
            parser.print_help()
            return 2
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
