"""The read-only commands: a table of programs with exactly the options that are safe.

An unlisted option asks the person, so an abbreviation, a new option or a typo costs a question at worst. Left out on
purpose: programs that run what a project says (`cargo`, `npm`, `pip`, `make`), `git diff`, `show`, `status` and `blame`
(filters, textconv and external diffs of the repository's own config), and `cd`, `env`, `awk`, `xargs`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fulgur.agent.loop.shell_words import simple_commands


@dataclass(frozen=True)
class Rule:
    """What may follow a program's name. An option ends in `:` if it takes a value, in `=` if it may (`--x=v`)."""

    options: frozenset[str]
    operands: int | None = None
    """The most operands; None for any number."""
    operand: str = ".*"
    """What every operand must look like."""

    def fits(self, words: Sequence[str]) -> bool:
        """Whether the arguments contain only these options and operands."""
        operands: list[str] = []
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word == "--":
                operands += rest
                break
            if not word.startswith("-") or word == "-":
                operands.append(word)
            elif not self._option(word, rest):
                return False
        if self.operands is not None and len(operands) > self.operands:
            return False
        return all(re.fullmatch(self.operand, operand) for operand in operands)

    def _option(self, word: str, rest: list[str]) -> bool:
        """Check one option; its value, if any, is popped from `rest`."""
        name, equals, _ = word.partition("=")
        if equals and (f"{name}=" in self.options or f"{name}:" in self.options):
            return True
        if word in self.options or f"{word}=" in self.options:
            return True
        if f"{word}:" in self.options:
            return self._value(rest)
        if re.fullmatch(r"-\d+", word):
            return "-#" in self.options
        if word.startswith("--"):
            return False
        for place, letter in enumerate(word[1:], 2):  # -la, -n5
            if f"-{letter}:" in self.options:
                return bool(word[place:]) or self._value(rest)
            if f"-{letter}" not in self.options:
                return False
        return True

    def _value(self, rest: list[str]) -> bool:
        # A value that looks like an option is more likely a misread option.
        return bool(rest) and not rest.pop(0).startswith("-")


def rule(options: str = "", operands: int | None = None, operand: str = ".*") -> Rule:
    """Build a rule from a string of options."""
    return Rule(frozenset(options.split()), operands, operand)


_GREP = (
    "-r -R -n -i -l -L -c -v -w -x -E -F -P -o -h -H -s -q -a -I -z -A: -B: -C: -m: -e: -# --color= --include: "
    "--exclude: --exclude-dir: --recursive --line-number --ignore-case --files-with-matches --count --only-matching"
)
_SUM = rule("-b -t")

READ_ONLY: Mapping[str, Rule] = {
    "basename": rule("-a -s:"),
    "cat": rule("-n -b -s -A -e -E -t -T -u -v --number --show-all"),
    "cmp": rule("-s -l -b"),
    "cut": rule("-d: -f: -c: -b: -s --delimiter: --fields:"),
    "date": rule("-u -R -I --utc", 1, operand=r"\+.*"),
    "df": rule("-h -T -i -k"),
    "diff": rule("-u -r -q -N -w -b -B -i -a -s -y -U: --brief --color= --unified= --recursive"),
    "dirname": rule(),
    "du": rule("-s -h -a -c -k -m -d: --max-depth: --summarize"),
    "egrep": rule(_GREP),
    "false": rule(),
    "fgrep": rule(_GREP),
    "file": rule("-b -i -L"),
    "find": rule(
        "-name: -iname: -path: -ipath: -type: -maxdepth: -mindepth: -size: -mtime: -mmin: -newer: -not -empty -print "
        "-print0 -prune -o -a"
    ),
    "grep": rule(_GREP),
    "head": rule("-n: -c: -q -v -# --lines: --bytes:"),
    "id": rule("-u -g -G -n -r"),
    "ls": rule(
        "-a -A -l -h -1 -R -t -r -S -d -F -s -i -n -g -o -p -X -L -c -u -# --all --almost-all --human-readable "
        "--recursive --reverse --directory --color= --sort: --time-style: --group-directories-first"
    ),
    "md5sum": _SUM,
    "nl": rule("-b:"),
    "printf": rule(),
    "pwd": rule("-L -P", 0),
    "readlink": rule("-f -e -m -n"),
    "realpath": rule("-e -m -s --relative-to:"),
    "rg": rule(
        "-n -i -l -c -w -v -F -o -S -s -U -x -u -N -H -A: -B: -C: -m: -g: -t: -T: -e: --files --hidden --no-ignore "
        "--glob: --type: --max-count: --max-depth: --no-heading --heading --color: --line-number --ignore-case "
        "--files-with-matches --count --fixed-strings --word-regexp"
    ),
    "sha1sum": _SUM,
    "sha256sum": _SUM,
    "sort": rule("-n -r -u -f -h -V -b -g -i -M -s -c -k: -t: --reverse --unique --numeric-sort"),
    "stat": rule("-c: -f -L -t --format:"),
    "tail": rule("-n: -c: -q -v -# --lines: --bytes:"),
    "tr": rule("-d -s -c -C"),
    "tree": rule("-a -d -f -i -L: -I: -P: --noreport"),
    "true": rule(),
    "tty": rule("-s", 0),
    "uname": rule("-a -s -r -m -n -v -o", 0),
    "uniq": rule("-c -d -u -i -f: -s: -w:", 1),  # it writes to a second operand
    "wc": rule("-l -c -m -w -L --lines --words --bytes"),
    "which": rule("-a"),
    "whoami": rule("", 0),
}

# Patterns for all arguments together, joined by NUL.
READ_ONLY_WHOLE: Mapping[str, str] = {
    "command": r"-v\0[^-\0][^\0]*",
    "echo": r"(?s:.*)",
    "sed": r"-n\0\d+(,(\d+|\$))?p(\0[^-\0][^\0]*)*",
    "test": r"-[efdrwxsLh]\0[^\0]*",
}

_LOG = (
    "--oneline --graph --decorate= --all --stat --shortstat --name-only --name-status --no-merges --merges --reverse "
    "--first-parent --follow --abbrev-commit -i -n: --max-count: --since: --until: --after: --before: --author: "
    "--grep: -#"
)
# Subcommands that neither compare with the working tree (filters, fsmonitor) nor show contents (textconv, external
# diffs).
READ_ONLY_GIT: Mapping[str, Rule] = {
    "branch": rule("-a -r -v -vv --show-current --list", 0),
    "describe": rule("--tags --always --long --all"),
    "log": rule(_LOG),
    "ls-files": rule("-c -o -z -t -s --cached --others --exclude-standard --stage"),
    "remote": rule("-v", 0),
    "rev-parse": rule("--show-toplevel --abbrev-ref= --short= --verify --git-dir --is-inside-work-tree"),
    "tag": rule("-l --list -n", 0),
}

# Overrides of repository config that could still run a program.
_GIT_CONFIG = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "core.sshCommand": "false",
    "format.pretty": "medium",
    "log.showSignature": "false",
    "protocol.allow": "never",
}
READ_ONLY_ENVIRONMENT: Mapping[str, str] = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_CONFIG_COUNT": str(len(_GIT_CONFIG)),
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    **{f"GIT_CONFIG_KEY_{n}": key for n, key in enumerate(_GIT_CONFIG)},
    **{f"GIT_CONFIG_VALUE_{n}": value for n, value in enumerate(_GIT_CONFIG.values())},
}
"""Set when such a command runs unasked."""


def is_read_only(command: str) -> bool:
    """Whether every part of the command only reads; False for anything not plainly understood."""
    commands = simple_commands(command)
    return commands is not None and all(only_reads(simple.words) for simple in commands)


def only_reads(words: Sequence[str]) -> bool:
    """Whether one simple command only reads."""
    program, *arguments = words
    if program == "git":
        return bool(arguments) and arguments[0] in READ_ONLY_GIT and READ_ONLY_GIT[arguments[0]].fits(arguments[1:])
    if program in READ_ONLY_WHOLE:
        return bool(re.fullmatch(READ_ONLY_WHOLE[program], "\0".join(arguments)))
    return program in READ_ONLY and READ_ONLY[program].fits(arguments)
