"""The rules on processes, git and files notice what they must; `tests/test_imports.py` keeps them."""

import ast

import pytest
from process_rules import SOURCE, git_commands, process_starts


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
