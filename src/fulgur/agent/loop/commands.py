"""Shell commands seen as words: which only look, and which prefix of one may be remembered as allowed."""

from __future__ import annotations

import re
import shlex

# Anything that makes a command more than words with `&&`, `||`, `;` and `|` between them.
_NOT_PLAIN = re.compile(r"[`$<>(){}\n\\*?\[\]~!#&]")
_SEPARATORS = {"&&", "||", ";", "|"}

_LOOKING = frozenset(
    {"basename", "cat", "cd", "cmp", "cut", "date", "df", "diff", "dirname", "du", "echo", "env", "expr", "false"}
    | {"file", "grep", "egrep", "fgrep", "head", "id", "ls", "md5sum", "nl", "printf", "pwd", "readlink", "realpath"}
    | {"rg", "sha256sum", "stat", "tail", "test", "tr", "true", "tty", "uname", "uniq", "wc", "which", "whoami"}
)
_LOOKING_SUBCOMMANDS = {
    "git": frozenset(
        {"blame", "describe", "diff", "grep", "log", "ls-files", "rev-parse", "shortlog", "show", "status"}
    ),
    "cargo": frozenset({"check", "metadata", "tree"}),
    "go": frozenset({"env", "list", "version"}),
    "npm": frozenset({"ls", "outdated", "view"}),
    "pip": frozenset({"freeze", "list", "show"}),
}
# Options that make a looking command write or run something.
_ACTING_OPTIONS = re.compile(r"--output(=|$)|--ext-diff|--textconv|--open-files-in-pager|--pre(=|$)|-O$|-o$|--exec")

# Programs whose first words say nothing about what they will do: only the whole command is remembered.
_WRAPPERS = frozenset(
    {"awk", "bash", "busybox", "chroot", "curl", "dash", "doas", "docker", "env", "eval", "exec", "find", "fish", "ksh"}
    | {"make", "nice", "node", "nohup", "perl", "php", "podman", "python", "python3", "rm", "ruby", "sed", "sh", "ssh"}
    | {"stdbuf", "sudo", "tee", "time", "timeout", "watch", "wget", "xargs", "zsh"}
)
_WITH_SUBCOMMAND = frozenset(
    {
        "apt",
        "apt-get",
        "brew",
        "bun",
        "bundle",
        "cargo",
        "cmake",
        "composer",
        "deno",
        "dnf",
        "dotnet",
        "gem",
        "gh",
        "git",
    }
    | {"go", "gradle", "helm", "hg", "kubectl", "mvn", "npm", "npx", "pip", "pipx", "pnpm", "poetry", "rustup", "svn"}
    | {"terraform", "uv", "yarn"}
)


def simple_commands(command: str) -> list[list[str]] | None:
    """The simple commands of a line as words, or None when it has anything a shell would expand or redirect."""
    bare = re.sub(r"'[^']*'|\"[^\"`$\\]*\"", "q", command)
    if _NOT_PLAIN.search(bare.replace("&&", " ")) or re.search(r"(?<!&)&(?!&)", bare):
        return None
    lexer = shlex.shlex(command, posix=True, punctuation_chars=";|&")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return None
    commands: list[list[str]] = [[]]
    for word in words:
        if word in _SEPARATORS:
            commands.append([])
        elif word and set(word) <= set(";|&"):
            return None
        else:
            commands[-1].append(word)
    if any(not words or "=" in words[0] for words in commands):
        return None
    return commands


def only_looks(command: str) -> bool:
    """Whether every part of it only reads."""
    commands = simple_commands(command)
    return commands is not None and all(_looks(words) for words in commands)


def _looks(words: list[str]) -> bool:
    if any(_ACTING_OPTIONS.match(word) for word in words[1:]):
        return False
    if words[0] in _LOOKING_SUBCOMMANDS:
        return len(words) > 1 and words[1] in _LOOKING_SUBCOMMANDS[words[0]]
    return words[0] in _LOOKING and (words[0] != "env" or len(words) == 1)


def rememberable_prefix(command: str) -> tuple[str, ...]:
    """What `always` remembers: the program and its subcommand; empty when the command is not plain words."""
    commands = simple_commands(command)
    if commands is None or len(commands) != 1:
        return ()
    words = commands[0]
    if words[0] in ("python", "python3") and words[1:2] == ["-m"] and len(words) > 2:
        return tuple(words[:3])
    if words[0] in _WRAPPERS or "/" in words[0]:
        return tuple(words)
    if words[0] in _WITH_SUBCOMMAND:
        run = 3 if len(words) > 2 and words[1] in ("run", "exec") else 2
        return tuple(words[:run])
    return (words[0],)


def covered(command: str, prefixes: list[tuple[str, ...]]) -> bool:
    """Whether every simple command of it starts with a remembered prefix (or only looks)."""
    commands = simple_commands(command)
    if commands is None:
        return False
    return all(
        any(tuple(words[: len(prefix)]) == prefix and _exact(prefix, words) for prefix in prefixes) or _looks(words)
        for words in commands
    )


def _exact(prefix: tuple[str, ...], words: list[str]) -> bool:
    """A wrapper was remembered whole and covers nothing longer."""
    module = prefix[0] in ("python", "python3") and prefix[1:2] == ("-m",) and len(prefix) == 3
    return module or len(prefix) == len(words) or (prefix[0] not in _WRAPPERS and "/" not in prefix[0])
