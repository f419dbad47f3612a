"""The shell parser against bash itself: what it accepts, bash reads as exactly the same words, and nothing more."""

import random
import subprocess
from pathlib import Path

import pytest
from approval_commands import HARMFUL, HARMLESS
from fuzzing import enough, rounds
from waiting import PATIENCE

from fulgur.agent.loop.read_only import is_read_only
from fulgur.agent.loop.shell_words import simple_commands

PIECES = [
    *(
        "ls",
        "cat",
        "git",
        "log",
        "x",
        "-la",
        "--a=b",
        "a=b",
        "HEAD~2",
        "~",
        "~x",
        "2",
        "1",
        "!",
        "^",
        "%",
        "@",
        ":",
        ",",
    ),
    *(
        " ",
        "  ",
        "\t",
        " ",
        " ",
        "'",
        '"',
        "''",
        "'a b'",
        '"c d"',
        "'$x'",
        '"$x"',
        "'`x`'",
        '"`x`"',
        "\\",
        "\\'",
        '\\"',
    ),
    *("&&", "||", ";", "|", "&", "|&", ";;", "2>&1", "2>/dev/null", ">/dev/null", ">", ">>", "<", "<<x", "<<<", "&>"),
    *("$", "$x", "${x}", "$(x)", "`x`", "$'x'", '$"x"', "*", "?", "[a]", "{a,b}", "{1..3}", "(", ")", "{", "}", "#"),
    *("\n", "\r", "\x0b", "\x0c", "\x00", "\x1b", "\x7f", "\x80", "\xa0", "\u3000", "\u2028", "é", "\u200b", "\u3164"),
    *("if", "then", "fi", "for", "time", "function", "[[", "]]", "[", "]", "coproc", "=", "+=", "a+=b", "a[0]=b"),
]
SHOW = r"""
unset -f command_not_found_handle
command_not_found_handle() { printf '%s\0' "$@" $'\1' >&9; return STATUS; }
for name in $(compgen -b); do case $name in printf|for|eval|return|enable) ;; *) enable -n "$name";; esac; done
PATH=/nonexistent
eval -- "$COMMAND"
"""


def bash_reads(command: str, folder: Path, status: int) -> set[tuple[str, ...]]:
    """The commands bash runs, as words, when each of them ends with `status`; none of them exists."""
    read = folder / "read"
    with open(read, "wb") as write:
        subprocess.run(
            ["/bin/bash", "--noprofile", "--norc", "-c", f"exec 9>&1; {SHOW.replace('STATUS', str(status))}"],
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=subprocess.DEVNULL,
            cwd=folder / "empty",
            env={"COMMAND": command, "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "x": "expanded y", "HOME": "/tilde"},
            timeout=PATIENCE,
        )
    ran: set[tuple[str, ...]] = set()
    words: list[str] = []
    for word in read.read_bytes().decode(errors="surrogateescape").split("\0"):
        if word == "\1":
            ran.add(tuple(words))
            words = []
        else:
            words.append(word)
    return ran


def mixed(random: random.Random) -> str:
    """Fragments at random, or a known command with a few of them put in."""
    if random.random() < 0.5:
        return "".join(random.choice(PIECES) for _ in range(random.randint(1, 9)))
    command = random.choice(HARMLESS + HARMFUL)
    for _ in range(random.randint(1, 3)):
        place = random.randint(0, len(command))
        command = command[:place] + random.choice(PIECES) + command[place + random.randint(0, 1) :]
    return command


def test_what_is_understood_is_what_bash_reads(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    accepted = 0
    for seed, generator in rounds(3000):
        command = mixed(generator)
        parsed = simple_commands(command)
        if parsed is None:
            assert not is_read_only(command)
            continue
        accepted += 1
        words = {part.words for part in parsed}
        if any(word[0] in ("printf", "eval", "return", "enable", "") for word in words):
            continue  # what shows the words is bash itself
        succeeding, failing = (bash_reads(command, tmp_path, status) for status in (0, 1))
        assert succeeding | failing <= words, f"seed {seed}: {command!r}"
        if len(parsed) == 1 and "/" not in parsed[0].words[0]:
            assert succeeding == words, f"seed {seed}: {command!r}"
        assert not list((tmp_path / "empty").iterdir()), f"seed {seed}: {command!r} wrote a file"
    enough(accepted, 100)


@pytest.mark.parametrize("command", HARMLESS)
def test_plain_commands_are_what_bash_reads(command: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    words = {part.words for part in simple_commands(command) or []}
    shown = bash_reads(command, tmp_path, 0) | bash_reads(command, tmp_path, 1)
    assert shown <= words
    assert shown == words or any(part[0] == "printf" for part in words)
