"""What a bare `fulgur` does, and where global flags may stand."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fulgur.ui.cli import find_command


@pytest.mark.parametrize(
    ("given", "command", "arguments"),
    [
        ([], None, []),
        (["-m", "exec"], None, ["-m", "exec"]),  # a model may be called like a command
        (["--resume", "exec"], None, ["--resume", "exec"]),
        (["exec", "-m", "x", "do it"], "exec", ["exec", "-m", "x", "do it"]),
        (["-m", "x", "-C", "dir", "exec", "do it"], "exec", ["exec", "-m", "x", "-C", "dir", "do it"]),
        (["--model=x", "ask", "who"], "ask", ["ask", "--model=x", "who"]),
    ],
)
def test_global_flags_may_stand_before_the_command(given: list[str], command: str | None, arguments: list[str]) -> None:
    assert find_command(given) == (command, arguments)


def test_without_a_terminal_it_shows_the_help() -> None:
    done = subprocess.run([sys.executable, "-m", "fulgur"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 2 and "COMMAND" in done.stdout
