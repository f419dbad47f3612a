"""The `fulgur` command: one table of commands, each in its own module that is imported only when called.

A command module (`fulgur/ui/commands/NAME.py`) has two functions:
    add_arguments(parser: argparse.ArgumentParser) -> None
    run(args: argparse.Namespace) -> int
Start-up is fast because only the chosen module is loaded.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from fulgur import __version__
from fulgur.errors import FulgurError, UsageError
from fulgur.ui.foreign import has_screen, note
from fulgur.ui.parser import Parser, describe, listed

# Purpose -> name -> one line of help. The module is fulgur.ui.commands.NAME.
GROUPS: dict[str, dict[str, str]] = {
    "the agent": {
        "exec": "work on a prompt without a screen, for scripts and CI",
        "tasks": "run a task list, show it, or make one",
        "route": 'which model `model = "auto"` would choose for a prompt, and why',
        "app": "the agent in your browser, several sessions side by side",
        "attach": "open a session of the browser or an editor in this terminal",
        "acp": "the agent inside an editor (Agent Client Protocol)",
        "host": "run the sessions of app, attach and acp, which start it",
    },
    "code, without a conversation": {
        "edit": "change a part of a file with an instruction",
        "refactor": "rename, move, extract, inline … exactly, over the whole project",
        "complete": "what the embedded model would type at a cursor",
        "next": "the edits that follow from the last change of a file",
        "ask": "which file owns X? from an index, without a model",
    },
    "models and servers": {
        "models": "which open models fit this machine; fetch, quantize, remove",
        "serve": "serve models: the Responses API over HTTP and WebSocket",
        "connect": "point Codex CLI at this server",
        "admin": "a server's API keys, and what each has used",
        "cluster": "one model on many machines",
        "simulate": "how many users a cluster can serve, and how long they wait",
    },
    "this machine": {
        "config": "show, check, trust or import the configuration",
        "doctor": "what this machine can do, and which kernels are used",
        "demo": "walk through a completion and an edit, with the speeds",
        "bench": "every speed claim, measured here",
        "eval": "every quality claim, measured here",
    },
}
COMMANDS: dict[str, str] = {name: text for group in GROUPS.values() for name, text in group.items()}

_USAGE = 'fulgur [options] ["PROMPT"]\n       fulgur COMMAND …'
_DESCRIPTION = """Real-time coding on your own hardware.

  fulgur                        open the terminal UI in this folder
  fulgur "fix the tests"        the same, with a first prompt
  git diff | fulgur exec "..."  one prompt, without a screen
"""

# Flags that take a value and may come before the command.
GLOBAL_FLAGS = ("-m", "--model", "-p", "--profile", "-c", "--config", "-C", "--cd")


def find_command(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Find the command; return it with the arguments, global flags moved after it for its own parser."""
    index = 0
    while index < len(arguments) and arguments[index].startswith("-") and arguments[index] != "--resume":
        index += 2 if arguments[index] in GLOBAL_FLAGS else 1
    if index >= len(arguments) or arguments[index] == "--resume":
        return None, arguments
    return arguments[index], [arguments[index], *arguments[:index], *arguments[index + 1 :]]


def is_prompt(word: str | None) -> bool:
    """Whether the first word is a prompt instead of a command: `fulgur "fix the tests"`."""
    return word is not None and word not in COMMANDS and any(char.isspace() for char in word.strip())


def refuse_unknown(word: str | None) -> None:
    """Raise UsageError for an unknown command: suggest similar ones, and how to give a prompt of one word."""
    if word is None or word in COMMANDS or is_prompt(word) or word.startswith("-"):
        return
    import difflib

    close = difflib.get_close_matches(word, COMMANDS, n=3)
    meant = f"Did you mean {' or '.join(close)}? " if close else "`fulgur --help` lists them. "
    raise UsageError(f"there is no command {word}", hint=f"{meant}A prompt of one word: fulgur exec {word}")


class _Root(Parser):
    def format_help(self) -> str:
        self.epilog = listed_commands()  # built only when shown
        return super().format_help()


def build_parser(command: str | None) -> Parser:
    """Build the parser for one command line; only the chosen command's module is imported."""
    parser = _Root("fulgur", usage=_USAGE, description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"fulgur {__version__}")
    if command is None or is_prompt(command):
        importlib.import_module("fulgur.ui.commands.tui").add_arguments(parser)
    if is_prompt(command):
        parser.add_argument("prompt")
        return parser
    # At most one subparser: building all of them takes longer than a short command. The list of commands is plain text.
    subparsers = parser.add_subparsers(dest="command", help=argparse.SUPPRESS, prog="fulgur", parser_class=Parser)
    if command in COMMANDS:
        sub = subparsers.add_parser(command, description=COMMANDS[command])
        importlib.import_module(f"fulgur.ui.commands.{command}").add_arguments(sub)
        describe(sub)
    return parser


def listed_commands() -> str:
    """The help text that lists every command by purpose."""
    groups = (listed(title, group) for title, group in GROUPS.items())
    return "\n\n".join([*groups, "`fulgur COMMAND --help` says more."])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 the work failed, 2 wrong use, 130 interrupted."""
    _open_closed_streams()
    command, arguments = find_command(list(sys.argv[1:] if argv is None else argv))
    screen = has_screen()
    if is_prompt(command) and not screen:
        command, arguments = "exec", ["exec", *arguments]  # `git diff | fulgur "explain this"`
    try:
        refuse_unknown(command)
        parser = build_parser(command)
        args = parser.parse_whole(arguments)
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
        # The reader has gone (`fulgur … | head`): silence the interpreter's own flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        note(f"fulgur: {_told(error)}")
        return 1
    except KeyboardInterrupt:
        return 130


def _open_closed_streams() -> None:
    """Open /dev/null for streams that our parent closed (`>&-`); otherwise the next opened file would take their
    place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (for good)


def _told(error: OSError) -> str:
    """Describe an OSError, such as a full disk or an unreadable folder: what it concerns and, if known, what to do."""
    from fulgur.workspace.folders import home

    if not isinstance(error.filename, str):
        try:
            os.getcwd()
        except FileNotFoundError:
            return "the current folder was deleted\n  Change to a folder that exists, or name one with -C."
        return error.strerror or str(error)
    said = f"{error.filename}: {error.strerror or error}"
    if not error.filename.startswith(str(home())):
        return said
    return f"{said}\n  Fulgur keeps its files there; FULGUR_HOME names another folder."


if __name__ == "__main__":
    raise SystemExit(main())
