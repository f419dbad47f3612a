"""Resizing in tmux, which folds rows as modern terminals do: draft and words stay, nothing is left over."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Tmux:
    """One window of a tmux server of its own."""

    def __init__(self, socket: Path, command: str, cwd: Path) -> None:
        self._base = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        self._run("new-session", "-d", "-s", "t", "-x", "80", "-y", "24", "-c", str(cwd), command)

    def _run(self, *arguments: str) -> str:
        return subprocess.run([*self._base, *arguments], capture_output=True, text=True, check=True).stdout

    def send(self, *keys: str) -> None:
        self._run("send-keys", "-t", "t", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._run("resize-window", "-t", "t", "-x", str(columns), "-y", str(rows))

    def everything(self) -> str:
        return self._run("capture-pane", "-t", "t", "-p", "-S", "-5000")

    def wait(self, holds: Callable[[str], object], seconds: float = PATIENCE) -> str:
        end = time.monotonic() + seconds
        while not holds(text := self.everything()):
            assert time.monotonic() < end, f"not shown in time:\n{text[-3000:]}"
            time.sleep(0.05)
        return text

    def rest(self) -> None:
        """Until nothing has changed for a while."""
        before, same = "", 0
        while same < 8:
            time.sleep(0.1)
            now = self.everything()
            before, same = now, same + 1 if now == before else 0

    def close(self) -> None:
        self._run("kill-server")


@pytest.fixture
def tmux(tmp_path: Path, home: Path, project: Path) -> Iterator[Tmux]:
    window = Tmux(tmp_path / "tmux", f"FULGUR_HOME={home} {sys.executable} -m fulgur; sleep 60", project)
    yield window
    window.close()


DRAFT = "a draft that is long enough to need two rows on a narrow terminal"


def test_resizing_in_mid_stream_loses_nothing(tmux: Tmux) -> None:
    tmux.wait(lambda text: "›" in text)
    tmux.send("tell a short story", "Enter")
    tmux.wait(lambda text: "w0030" in text)
    tmux.send(DRAFT)
    for columns, rows in ((50, 20), (36, 12), (100, 30), (80, 24)):
        tmux.resize(columns, rows)
        time.sleep(0.2)

    def whole(text: str) -> bool:
        # A narrower terminal may have folded a word. tmux says late that it is narrower, so rows may be there twice.
        said = [int(number) for number in re.findall(r"w(\d{4})", text.replace("\n", ""))]
        return list(dict.fromkeys(said)) == list(range(220)) and DRAFT in text

    tmux.wait(lambda text: "220 tokens" in text and whole(text))


def test_resizing_at_rest_leaves_nothing_over(tmux: Tmux) -> None:
    tmux.wait(lambda text: "›" in text)
    tmux.send("tell a short story", "Enter")
    tmux.wait(lambda text: "220 tokens" in text)
    tmux.send(DRAFT)
    tmux.wait(lambda text: DRAFT in text)
    for columns, rows in ((50, 20), (36, 12), (100, 30), (80, 24)):
        tmux.rest()
        tmux.resize(columns, rows)
    tmux.rest()
    text = tmux.wait(lambda text: DRAFT in text and "ctx " in text)
    assert re.findall(r"w(\d{4})", text.replace("\n", "")) == [f"{number:04}" for number in range(220)]
    assert text.count("a draft that is") == text.count("on a narrow") == text.count("ctx ") == 1
