"""Opening a hostile folder with the commands of the command line runs no line of its code.

By default every folder meets the commands that start processes, and one folder with everything in it meets all of
them; `FULGUR_ATTACKS=full` runs all commands in all folders.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from startup_folders import FOLDERS, Hostile

from fulgur.bench.pty import PtyProgram
from fulgur.bench.tui import _PROMPT
from fulgur.workspace.folders import ASSETS

FULGUR = shutil.which("fulgur", path=str(Path(sys.executable).parent))
FULL = os.environ.get("FULGUR_ATTACKS") == "full"

COMMANDS = {
    "version": ["--version"],
    "exec": ["exec", "look around"],
    "ask": ["ask", "where is greet?"],
    "config show": ["config", "show"],
    "config check": ["config", "check"],
    "approvals": ["config", "approvals"],
    "connect": ["connect", "codex", "-m", "scripted"],
    "edit": ["edit", "main.py:greet", "rename the parameter to who", "-m", "30M"],
    "complete": ["complete", "main.py:2:5", "-m", "30M", "--max-tokens", "4"],
    "next": ["next", "main.py", "-m", "30M"],
    "demo": ["demo", "-m", "30M"],
    "bench": ["bench", "--help"],
    "eval": ["eval", "--help"],
    "doctor": ["doctor", "--json"],
}
QUICK = ("exec", "ask", "next", "edit", "config show")

SCRIPT = """
[[reply]]
match = "look"
times = 1
steps = [
  {call = "read", arguments = {path = "main.py"}},
  {call = "list", arguments = {}},
  {call = "search", arguments = {pattern = "greet"}},
  {call = "shell", arguments = {command = "printf done"}},
]
[[reply]]
steps = [{text = "Looked."}]
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "script.toml").write_text(SCRIPT)
    models = f'[models.scripted]\nbackend = "scripted"\npath = "{folder / "script.toml"}"\n'
    models += f'[models.small]\nbackend = "local"\npath = "{ASSETS / "30M"}"\n'
    (folder / "server.toml").write_text(f"[server]\nport = 0\n{models}")
    (folder / "config.toml").write_text('model = "scripted"\n')
    yield folder
    stop_server(folder)


def stop_server(home: Path) -> None:
    try:
        pid = int(json.loads((home / "server.json").read_text())["pid"])
        os.kill(pid, signal.SIGTERM)
        for _ in range(200):
            os.kill(pid, 0)
            time.sleep(0.02)
    except (OSError, ValueError):
        pass


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FULGUR", "PYTHON"))}
    own = {"HOME": str(home.parent), "FULGUR_HOME": str(home), "CODEX_HOME": str(home / "codex"), "BASH_ENV": ".bashrc"}
    return {**kept, **own, "PATH": f".::node_modules/.bin:bin:{os.environ['PATH']}"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FOLDERS)
def test_no_line_of_a_hostile_folder_runs(name: str, home: Path, tmp_path: Path) -> None:
    folder = Hostile(tmp_path / "hostile")
    FOLDERS[name](folder)
    env = environment(home)
    assert FULGUR
    for command, words in COMMANDS.items():
        if not (FULL or name == "everything" or command in QUICK):
            continue
        done = subprocess.run(
            [FULGUR, *words], cwd=folder.folder, env=env, capture_output=True, text=True, timeout=120, errors="replace"
        )
        assert folder.ran() == [], command
        assert "Traceback" not in done.stderr, f"{command}: {done.stderr}"
        if command in ("exec", "ask"):
            assert done.returncode == 0, done.stderr
        if command == "exec":
            assert "Looked." in done.stdout
            assert "TOP-SECRET-RULE" not in done.stdout + done.stderr
    if FULL or name in ("everything", "git_fsmonitor", "git_bare", "standard_library"):
        screen(folder, env)
    if FULL or name == "everything":
        stop_server(home)  # the one that was started by itself; this one takes its place in the note
        serve(folder, env)
    assert folder.ran() == []


def screen(folder: Hostile, env: dict[str, str]) -> None:
    """The terminal UI, with `@` typed and the status asked for."""
    terminal = PtyProgram([str(FULGUR)], env={**env, "TERM": "xterm-256color"}, cwd=folder.folder)
    try:
        seen = b""
        while _PROMPT not in seen:
            seen += terminal.read(60) or pytest.fail(f"the screen did not come up: {seen!r}")
        for keys in ("@ma", "\x15", "/status\r", "\x04", "\x04"):
            terminal.write(keys)
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                terminal.read(0.1)
            assert folder.ran() == [], keys
    finally:
        terminal.close()


def serve(folder: Hostile, env: dict[str, str]) -> None:
    assert FULGUR
    process = subprocess.Popen(
        [FULGUR, "serve", "--port", "0"], cwd=folder.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert process.stdout is not None
        assert b"listens" in process.stdout.readline()
        assert folder.ran() == [], "serve"
    finally:
        process.terminate()
        process.wait(20)


def test_there_are_enough_folders() -> None:
    assert len(FOLDERS) >= 20


def test_marks_are_left_when_code_runs(tmp_path: Path) -> None:
    folder = Hostile(tmp_path / "hostile")
    FOLDERS["standard_library"](folder)
    FOLDERS["git_fsmonitor"](folder)
    subprocess.run([sys.executable, "-m", "json.tool", "--help"], cwd=folder.folder, capture_output=True)
    assert any(".py" in line for line in folder.ran())
    subprocess.run(["git", "-C", str(folder.folder), "status"], capture_output=True)
    assert any("monitor" in line for line in folder.ran())
