"""`make run`, the first command of a new user: the terminal UI in a terminal, a demonstration elsewhere."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from terminal import Terminal

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """`make run` with an environment that is installed already, whose `fulgur` says how it was called."""
    (tmp_path / "bin").mkdir()
    for name in ("python", "fulgur"):
        program = tmp_path / "bin" / name
        program.write_text('#!/bin/sh\necho "called: fulgur $*."\ntest ! -t 1 || sleep 600\n')  # a screen stays
        program.chmod(0o755)
    (tmp_path / ".installed").touch()  # newer than every source
    return [shutil.which("make") or "", "--no-print-directory", "-C", str(ROOT), f"VENV={tmp_path}", "run"]


def test_in_a_terminal_it_opens_the_screen(command: list[str], tmp_path: Path) -> None:
    terminal = Terminal(command, env={}, cwd=tmp_path)
    try:
        terminal.wait("called: fulgur .")
    finally:
        terminal.close()


def test_without_one_it_shows_a_demonstration(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.stdout == "called: fulgur demo.\n"
