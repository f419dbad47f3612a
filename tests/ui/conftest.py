"""One scripted server for all tests of the screen; every test has its own terminal, project and history."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from terminal import Terminal

from fulgur.bench.scripted_server import ScriptedServer

SCRIPT = '''
rate = 300
[[reply]]
match = "rename the drifting one"
steps = [{call = "read", arguments = {path = "app.py"}}]
[[reply]]
match = "long story"
steps = [{tokens = 9000}]
[[reply]]
match = "short story"
steps = [{tokens = 220}]
[[reply]]
match = "other way"
steps = [{text = "Right, going the other way."}]
[[reply]]
match = "markdown"
steps = [{text = "# Title\\n\\nSome `code` here.\\n\\n```python\\ndef f():\\n    return 1\\n```\\n"}]
[[reply]]
match = "reasoned"
steps = [{reasoning = "let me think"}, {text = "thought of it"}]
[[reply]]
match = "engine dies"
steps = [{text = "Half an ans"}, {fail = "the engine died"}]
[[reply]]
match = "never answers"
steps = [{fail = "out of memory"}]
[[reply]]
match = "^Summarise"
steps = [{tokens = 900}]
[[reply]]
after = "function_call_output"
steps = [{text = "The call is over."}]
[[reply]]
match = "run a slow command"
steps = [{call = "shell", arguments = {command = "echo first; echo second; sleep 60"}}]
[[reply]]
match = "run a command"
steps = [{call = "shell", arguments = {command = "touch made.txt"}}]
[[reply]]
match = "break out"
steps = [{call = "shell", arguments = {command = "touch /usr/fulgur-was-here"}}]
[[reply]]
match = "run it outside"
steps = [{call = "shell", arguments = {command = "true", unsandboxed = true, reason = "it needs the network"}}]
[[reply]]
match = "change the file"
[[reply.steps]]
call = "apply_patch"
arguments = {patch = """*** Begin Patch
*** Update File: app.py
@@
-x = 1
+x = 2
*** End Patch
"""}
[[reply]]
match = "start a server"
steps = [{call = "shell", arguments = {command = "echo serving; sleep 612345", background = true}}]
[[reply]]
match = "work by a plan"
[[reply.steps]]
call = "update_plan"
arguments = {plan = [{step = "look", status = "completed"}, {step = "change it", status = "in_progress"}]}
[[reply.steps]]
call = "shell"
arguments = {command = "echo first; sleep 60"}
[[reply]]
match = "finish the plan"
[[reply.steps]]
call = "update_plan"
arguments = {plan = [{step = "look", status = "completed"}, {step = "change it", status = "completed"}]}
[[reply]]
match = "change three places"
[[reply.steps]]
call = "apply_patch"
arguments = {patch = """*** Begin Patch
*** Update File: three.py
@@
-a = 1
+a = 10
@@
-b = 2
+b = 20
@@
-c = 3
+c = 30
*** End Patch
"""}
'''


CONFIG = """
[profiles.careful]
model = "scripted-2"
approval_policy = "untrusted"
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with ScriptedServer(tmp_path_factory.mktemp("server"), SCRIPT, config=CONFIG) as running:
        yield running


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "app.py").write_text("x = 1\n")
    (folder / "apple.txt").write_text("an apple\n")
    return folder


@pytest.fixture
def home(tmp_path: Path, server: ScriptedServer) -> Path:
    """A Fulgur home of its own that knows the server."""
    folder = tmp_path / "home"
    folder.mkdir()
    shutil.copy(server.home / "config.toml", folder / "config.toml")
    return folder


@pytest.fixture
def fulgur(home: Path, project: Path) -> Iterator[Callable[..., Terminal]]:
    """Start `fulgur` with these arguments in a terminal."""
    opened: list[Terminal] = []

    def start(*arguments: str, columns: int = 80, rows: int = 24) -> Terminal:
        command = [sys.executable, "-m", "fulgur", *arguments]
        terminal = Terminal(command, env={"FULGUR_HOME": str(home)}, cwd=project, columns=columns, rows=rows)
        opened.append(terminal)
        return terminal

    yield start
    for terminal in opened:
        terminal.close()


@pytest.fixture
def screen(fulgur: Callable[..., Terminal]) -> Terminal:
    """`fulgur`, ready for the first prompt."""
    terminal = fulgur()
    terminal.wait("›")
    return terminal
