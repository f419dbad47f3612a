"""The rules on processes, git and files notice what they must; `tests/test_imports.py` keeps them."""

import ast
from pathlib import Path

import pytest
from process_rules import SOURCE, git_commands, process_starts
from startup_folders import FOLDERS, Hostile

from fulgur.sandbox import start
from fulgur.sandbox.git import committed


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess", "from subprocess import run", "import os\nos.system('x')", "import os\nos.execv('x', [])",
        "from os import fork", "import asyncio\nasyncio.create_subprocess_exec('x')", "import pty\npty.fork()",
        "import multiprocessing", "import sys\n[sys.executable, '-m', 'x']", "import shutil\nshutil.which('rg')",
        "from multiprocessing import Process", "loop.subprocess_exec(None)", "from os import execvp",
    ],
)  # fmt: skip
def test_the_rule_has_teeth(code: str) -> None:
    assert list(process_starts(ast.parse(code)))


def test_git_is_seen() -> None:
    assert list(git_commands(ast.parse("run(['git', 'status'])"))) == [1]
    assert list(git_commands(ast.parse("start.program('git')"))) == [1]


def test_files_of_the_workspace_are_read_without_following_links() -> None:
    """The modules that read whole workspaces open files by `beneath` only."""
    readers = ("workspace/ignore.py", "workspace/symbols.py", "workspace/snapshots.py", "workspace/ask.py")
    readers += ("workspace/files.py", "workspace/undo.py", "tools/reading.py", "tools/plain_search.py")
    allowed = {"self._path", "path", "self.cache", "self._journal"}  # files of Fulgur's own home
    wrong = []
    for name in readers:
        for node in ast.walk(ast.parse((SOURCE / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("read_bytes", "read_text", "open", "unlink", "rmdir"):
                owner = ast.unparse(node.value)
                if owner != "os" and owner not in allowed:
                    wrong.append(f"{name}:{node.lineno} {owner}.{node.attr}")
    assert wrong == []


def test_programs_are_found_outside_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, project = tmp_path / "home", tmp_path / "home/project"
    for folder in (home / "bin", project / "bin"):
        folder.mkdir(parents=True)
        (folder / "tool").write_text("#!/bin/sh\n")
        (folder / "tool").chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(project)
    monkeypatch.setenv("PATH", f".:bin::{project}/bin:{home}/bin")
    assert start.program("tool") == f"{home}/bin/tool"
    monkeypatch.chdir(home)
    assert start.program("tool", project) == f"{home}/bin/tool"
    monkeypatch.chdir("/")
    assert start.program("tool", project) == f"{home}/bin/tool"
    monkeypatch.setenv("PATH", f"{project}/bin")
    assert start.program("tool", project) is None


def test_the_environment_of_our_own_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {"GIT_DIR": "x", "PYTHONSTARTUP": "x", "PYTHONHOME": "x", "BASH_ENV": "x", "LANG": "C"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", f":.:src:{tmp_path}/lib:/opt/lib")
    monkeypatch.setenv("LD_LIBRARY_PATH", ":lib:/opt/lib")
    clean = start.environment({"A": "b"})
    assert not {"GIT_DIR", "PYTHONSTARTUP", "PYTHONHOME", "BASH_ENV"} & set(clean)
    assert clean["PYTHONPATH"] == clean["LD_LIBRARY_PATH"] == "/opt/lib"
    assert clean["LANG"] == "C" and clean["A"] == "b" and clean["PYTHONSAFEPATH"] == "1"


def test_git_gives_the_committed_file_and_nothing_runs(tmp_path: Path) -> None:
    folder = Hostile(tmp_path / "hostile")
    FOLDERS["git_programs"](folder)
    assert (
        committed(folder.folder / "main.py", tmp_path / "home")
        == b"def greet(name):\n    return name\n\n\nprint(greet('a'))\n"
    )
    assert committed(folder.folder / "notes.txt", tmp_path / "home") is None
    assert folder.ran() == []
