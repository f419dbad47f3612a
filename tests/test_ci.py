"""`.ci/pytest`: a few failed tests are run once more, and what passes then is called flaky."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci/pytest"
# Each test fails the first time; `always` fails the second time, too.
FLAKY = """
import pathlib, pytest

@pytest.mark.parametrize("name", {names!r})
def test_one(name):
    mark = pathlib.Path(name)
    first = not mark.exists()
    mark.touch()
    assert not first and name != "always", f"{{name}} failed"
    if name == "skipped":
        pytest.skip()

def test_good():
    pass
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, SCRIPT, "-q", "-p", "no:cacheprovider", "--rootdir=.", *options],
        cwd=folder,
        env={**plain, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("names", "status", "again"),
    [
        (["a", "b::c", "d [e]"], 0, "3 passed"),
        (["a", "always"], 1, "1 failed, 1 passed"),
        (["a", "skipped"], 1, "1 passed, 1 skipped"),
        (["a", "b", "c", "d"], 1, ""),
        ([], 0, ""),
    ],
)
def test_up_to_three_failures_are_run_again(tmp_path: Path, names: list[str], status: int, again: str) -> None:
    (tmp_path / "test_flaky.py").write_text(FLAKY.format(names=names))
    done = run(tmp_path)
    first, _, second = done.stdout.partition(" failed: run again, alone ")
    assert done.returncode == status, done.stdout
    assert again in second and bool(again) == bool(second)
    assert all(f"{name} failed" in first for name in names), "the first failure's text is kept"
    flaky = second.partition(" flaky: passed when run again ")[2]
    assert [line for line in flaky.splitlines() if "::test_one" in line] == (
        [f"test_flaky.py::test_one[{name}]" for name in names] if again and status == 0 else []
    )


def test_files_that_are_not_collected_are_not_forgiven(tmp_path: Path) -> None:
    (tmp_path / "test_flaky.py").write_text(FLAKY.format(names=["a"]))
    (tmp_path / "test_broken.py").write_text("import a_module_that_is_not_there\n")
    done = run(tmp_path, "--continue-on-collection-errors")
    assert done.returncode == 1 and "run again" not in done.stdout
