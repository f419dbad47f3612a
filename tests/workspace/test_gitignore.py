"""The rules of `.gitignore` as git itself reads them."""

import random
import subprocess
from pathlib import Path

import pytest
from waiting import PATIENCE

from fulgur.workspace.gitignore import GitIgnore
from fulgur.workspace.ignore import walk

PATHS = [
    "a", "b.py", "a.txt", "ab", "abc", "a b", "x/a", "x/b.py", "x/y/a", "x/y/z/abc", "foo/a", "foo/bar/a.txt", "A",
    "a-b", "x/foo/a", "x/foo/bar/b.py", "aaa/b", "#a", "!a", "a]", "é.txt", "x.y.z", "build/lib/m.o", "lib/build/m.o",
    "a\\b",
]  # fmt: skip
PARTS = [
    "a", "b", "foo", "bar", "x", "*", "**", "?", "*.py", "*.txt", "a*", "*a*b*", "[ab]", "[!a]", "[a-c]*", "[]a]",
    "\\a", "build", "m.o", "*.*.*", "a?c", "\\#a", "\\!a", "[[:upper:]]", "é*", "a\\\\b", "a ", "[^b]?c",
]  # fmt: skip


def told_by_git(folder: Path, patterns: list[str]) -> set[str]:
    (folder / ".gitignore").write_text("\n".join(patterns) + "\n")
    command = ["git", "-C", str(folder), "-c", "core.excludesFile=/dev/null", "ls-files", "-co", "-z"]
    kept = subprocess.run([*command, "--exclude-per-directory=.gitignore"], capture_output=True, check=True).stdout
    return set(kept.decode().split("\0")) - {"", ".gitignore"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for name in PATHS:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


@pytest.mark.parametrize("seed", range(200))
def test_agrees_with_git(repository: Path, seed: int) -> None:
    choose = random.Random(seed)
    patterns = []
    for _ in range(choose.randint(1, 4)):
        text = "/".join(choose.choice(PARTS) for _ in range(choose.choice([1, 1, 1, 2, 3])))
        patterns.append(
            choose.choice(["", "", "!"]) + choose.choice(["", "", "/"]) + text + choose.choice(["", "", "/"])
        )
    kept = told_by_git(repository, patterns)
    ours = {str(Path(entry.path).relative_to(repository)) for entry in walk(repository)} - {".gitignore"}
    assert ours == kept, patterns


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize(
    "line",
    [
        "*a" * 17 + "b", "a*" * 200 + "b", "**/" * 100 + "b", "**/a*" * 60 + "/b", "(" * 300_000, "[" * 1000,
        "?*" * 300 + "b", "[a-z]*" * 100 + "\\b", "{" * 1000, "(a+)+$", "*" * 1000 + "b", "!" * 1000, "\\" * 999,
        "a/" * 500,
    ],
)  # fmt: skip
def test_no_line_takes_long(line: str) -> None:
    rules = GitIgnore([line] * 300)
    for path in ("a" * 250, "/".join(["a" * 200] * 18), "a/" * 900 + "a", "(" * 200):
        for _ in range(5):
            rules.verdict(path, folder=False)
