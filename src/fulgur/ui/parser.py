"""The parser of every command line: wrong use gives one line and a hint, and help fits 80 columns."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fulgur.errors import UsageError

_HELP_COLUMN = 26
_WIDEST = 100
_MISSING = "the following arguments are required: "  # argparse's words
_WRONG_CHOICE = re.compile(r"argument (\S+): invalid choice: '([^']*)'")


def width() -> int:
    """The columns that help may take."""
    import shutil  # slow to load, and not needed by `fulgur` itself

    return min(shutil.get_terminal_size().columns, _WIDEST) - 2


def listed(title: str, lines: Mapping[str, str]) -> str:
    """Format names and descriptions below a title, for a parser's epilog."""
    import textwrap

    column = max(len(name) for name in lines) + 4
    rows = (
        textwrap.fill(text, width(), initial_indent=f"  {name}".ljust(column), subsequent_indent=" " * column)
        for name, text in lines.items()
    )
    return "\n".join([f"{title}:", *rows])


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Puts `-m, --model MODEL` in one row with its help."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_HELP_COLUMN, width=width())

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of printing usage and exiting."""

    def __init__(self, prog: str | None = None, **options: Any) -> None:
        super().__init__(prog, **{"formatter_class": HelpFormatter, **options})

    def error(self, message: str) -> NoReturn:
        hint = f"`{self.prog} --help` shows how it is used."
        if message.startswith(_MISSING):
            message = self._missing(message.removeprefix(_MISSING).split(", "))
        elif wrong := _WRONG_CHOICE.match(message):
            import difflib

            action = next((one for one in self._positionals_of_words() if _name(one) == wrong[1]), None)
            if action is not None:
                choices = [str(choice) for choice in action.choices or ()]
                close = difflib.get_close_matches(wrong[2], choices, n=2)
                hint = f"Did you mean {' or '.join(close)}? {hint}" if close else hint
                message = f"there is no `{self._command()} {wrong[2]}`. One of: {', '.join(choices)}"
        raise UsageError(message, hint=hint)

    def _missing(self, names: list[str]) -> str:
        """Describe what is missing; for a fixed set of words, list them."""
        rest = {_name(action) for action in self._actions if action.nargs == argparse.REMAINDER}
        wanted = [name for name in names if name not in rest]
        for action in self._positionals_of_words():
            if _name(action) in wanted[:1]:
                return f"{self._command()} needs one of: {', '.join(map(str, action.choices or ()))}"
        return f"{self._command()} needs {', '.join(wanted)}"

    def _command(self) -> str:
        return self.prog.removeprefix("fulgur ")

    def _positionals_of_words(self) -> list[argparse.Action]:
        """The arguments with fixed choices: commands within this one, and kinds of a thing."""
        return [action for action in self._actions if action.choices and not action.option_strings]

    def parse_whole(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all arguments; for an unknown flag, suggest similar ones."""
        args, unknown = self.parse_known_args(arguments)
        if not unknown:
            return args
        import difflib

        flags = [word for word in unknown if word.startswith("-")] or unknown
        parsers = list(chosen(self, arguments))
        known = [flag for parser in parsers for action in parser._actions for flag in action.option_strings]
        close = difflib.get_close_matches(flags[0].partition("=")[0], known, n=2)
        meant = f"Did you mean {' or '.join(close)}? " if close else ""
        if not unknown[0].startswith("-"):
            meant = "A text of several words needs quotes. "
        elif within := taking(parsers[-1], flags[0]):
            meant = f"It goes with a command: `{within} {flags[0]}`. "
        hint = f"{meant}`{parsers[-1].prog} --help` lists what it takes."
        raise UsageError(f"unknown argument: {' '.join(unknown)}", hint=hint)


def _name(action: argparse.Action) -> str:
    """The name that argparse uses in its messages."""
    return str(action.metavar or action.dest)


def need_folders(*files: Path | None) -> None:
    """Raise UsageError if an output file's folder does not exist: before the work, not after it."""
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise UsageError(f"{file}: its folder does not exist", hint=f"mkdir -p {file.parent}")


def chosen(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[argparse.ArgumentParser]:
    """The parser, and those of the subcommands that the words name."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            name = next((word for word in words if word in action.choices), None)
            if name is not None:
                yield from chosen(action.choices[name], words[list(words).index(name) + 1 :])


def taking(parser: argparse.ArgumentParser, flag: str) -> str:
    """The first subcommand that takes a flag; empty if none does."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                if flag in inner._option_string_actions:
                    return str(inner.prog)
    return ""


def describe(parser: argparse.ArgumentParser) -> None:
    """Give each subcommand's help the description that the list shows."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for line in action._choices_actions:
                action.choices[line.dest].description = line.help
