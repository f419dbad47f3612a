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
from waiting import PATIENCE

from fulgur.bench.pty import PtyProgram
from fulgur.bench.tui import _PROMPT
from fulgur.ui import cli
from fulgur.workspace.folders import ASSETS

FULGUR = shutil.which("fulgur", path=str(Path(sys.executable).parent))
FULL = os.environ.get("FULGUR_ATTACKS") == "full"

COMMANDS = {
    "version": ["--version"],
    "exec": ["exec", "look around"],
    "exec with an image": ["exec", "look at @shot.png"],
    "ask": ["ask", "where is greet?"],
    "config show": ["config", "show"],
    "config check": ["config", "check"],
    "approvals": ["config", "approvals"],
    "connect": ["connect", "codex", "-m", "scripted"],
    "edit": ["edit", "main.py:greet", "rename the parameter to who", "-m", "30M"],
    "refactor": ["refactor", "rename", "main.py:greet", "hello"],
    "refactor write": ["refactor", "rename-parameter", "main.py:greet", "name", "who", "--write"],
    "edit write": ["edit", "main.py:greet", "rename the parameter to whom", "--write", "-m", "30M"],
    "edit undo": ["edit", "--undo"],
    "complete": ["complete", "main.py:2:5", "-m", "30M", "--max-tokens", "4"],
    "next": ["next", "main.py", "-m", "30M"],
    "admin": ["admin", "keys"],
    "admin usage": ["admin", "usage"],
    "admin migrate": ["admin", "migrate", "up"],
    "cluster": ["cluster", "replica"],
    "simulate": ["simulate", "--seconds", "5", "--users", "20"],
    "route": ["route", "mend main.py"],
    "tasks show": ["tasks", "show", "TASKS.md"],
    "tasks run": ["tasks", "run", "TASKS.md"],
    "tasks plan": ["tasks", "plan", "look around", "-o", "PLAN.md"],
    "variants": ["exec", "--variants", "2", "look around"],
    "models list": ["models", "list"],
    "models fit": ["models", "fit"],
    "models quantize": ["models", "quantize", "30M"],
    "host": ["host", "--stdio"],
    "acp": ["acp"],
    "attach": ["attach", "--list"],
    "app": ["app", "--no-open"],
    "demo": ["demo", "-m", "30M"],
    "bench": ["bench", "--help"],
    "eval": ["eval", "--help"],
    "doctor": ["doctor", "--json"],
}
# What is said on stdin, so that a session is opened.
INPUT = {
    "acp": """{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{}}}
{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"FOLDER","mcpServers":[]}}
""",
    "host": """{"jsonrpc":"2.0","id":1,"method":"session.open","params":{"workspace":"FOLDER"}}
""",
}
QUIET_S = 0.4
QUICK = ("exec", "ask", "next", "edit", "config show")

SCRIPT = """
[[reply]]
match = "look"
times = 1
steps = [
  {call = "read", arguments = {path = "main.py"}},
  {call = "list", arguments = {}},
  {call = "search", arguments = {pattern = "greet"}},
  {call = "skill", arguments = {name = "evil"}},
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
    stop_server(folder, "host.json")
    stop_server(folder)


def stop_server(home: Path, note: str = "server.json") -> None:
    try:
        pid = int(json.loads((home / note).read_text())["pid"])
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
        if command in INPUT:
            opens_a_session([FULGUR, *words], INPUT[command], folder, env)
            assert folder.ran() == [], command
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
            # The model asked for the folder's skill, and nothing of it is in what it was told.
            (session,) = (home / "sessions").glob("*.jsonl")
            assert "there is no tool named 'skill'" in session.read_text()
            assert "HOSTILE-SKILL" not in session.read_text()
    if FULL or name in ("everything", "git_fsmonitor", "git_bare", "standard_library"):
        screen(folder, env)
    if FULL or name == "everything":
        stop_server(home)  # the one that was started by itself; this one takes its place in the note
        serve(folder, env)
    assert folder.ran() == []


def opens_a_session(command: list[str], said: str, folder: Hostile, env: dict[str, str]) -> None:
    """A program that speaks on stdin and stdout: told these lines, it answers with a session."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=folder.folder, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdin and process.stdout and process.stderr
    try:
        process.stdin.write(said.replace("FOLDER", str(folder.folder)))
        process.stdin.flush()
        assert any('"session' in line for line in process.stdout), process.stderr.read()
    finally:
        process.stdin.close()
        process.wait(PATIENCE)


def screen(folder: Hostile, env: dict[str, str]) -> None:
    """The terminal UI, with `@` typed and the status asked for."""
    terminal = PtyProgram([str(FULGUR)], env={**env, "TERM": "xterm-256color"}, cwd=folder.folder)
    try:
        seen = b""
        while _PROMPT not in seen:
            seen += terminal.read(60) or pytest.fail(f"the screen did not come up: {seen!r}")
        for keys in ("@ma", "\x15", "/status\r", "\x04"):
            terminal.write(keys)
            # What it does is shown; then it is quiet.
            assert terminal.read(PATIENCE), keys
            while terminal.read(QUIET_S):
                pass
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
        process.wait(PATIENCE)


def test_there_are_enough_folders_and_no_command_is_left_out() -> None:
    assert len(FOLDERS) >= 20
    assert {words[0] for words in COMMANDS.values()} | {"serve"} >= set(cli.COMMANDS)


def test_marks_are_left_when_code_runs(tmp_path: Path) -> None:
    folder = Hostile(tmp_path / "hostile")
    FOLDERS["standard_library"](folder)
    FOLDERS["git_fsmonitor"](folder)
    subprocess.run([sys.executable, "-m", "json.tool", "--help"], cwd=folder.folder, capture_output=True)
    assert any(".py" in line for line in folder.ran())
    subprocess.run(["git", "-C", str(folder.folder), "status"], capture_output=True)
    assert any("monitor" in line for line in folder.ran())
