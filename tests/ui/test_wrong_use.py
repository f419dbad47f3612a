"""Wrong use of the command line: exit code 2, one line and a hint; never a traceback."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fulgur.ui.cli import COMMANDS, GROUPS, listed_commands, main


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FULGUR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text("def total():\n    return 1\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--frob"], "unknown argument: --frob"),
        (["--resme"], "Did you mean --resume?"),
        (["-m"], "expected one argument"),
        (["exec", "--jsno", "hi"], "Did you mean --json"),
        (["exec", "   "], "no prompt"),
        (["exec", "--timeout", "soon", "hi"], "invalid float value: 'soon'"),
        (["exec", "--variants", "0", "hi"], "cannot make 0 variants: choose 2 to 9"),
        (["exec", "-o", "nowhere/answer.txt", "hi"], "its folder does not exist"),
        (["exec", "-m", "groq:llama", "hi"], "GROQ_API_KEY is not set"),
        (["config", "show", "--frob"], "`fulgur config show --help`"),
        (["exec", "fix", "the", "tests"], "A text of several words needs quotes."),
        (["exec", "-C", "nowhere", "hi"], "nowhere is not a folder"),
        (["exec", "-c", "model_providers.x.base_url=here", "-c", "model_provider=x", "hi"], "x.base_url = 'here'"),
        (["ask", ""], "ask needs a name or a question"),
        (["ask", "-n", "0", "total"], "'0' is not a whole number above 0"),
        (["config", "trust", "-C", "nowhere"], "nowhere is not a folder"),
        (["admin", "usage", "--days", "many"], "'many' is not a whole number above 0"),
        (["tasks", "plan", " "], "tasks plan needs a goal"),
        (["tasks", "run", "-j", "0"], "'0' is not a whole number above 0"),
        (["bench", "tui", "--starts", "0"], "at least one start, two keys"),
        (["tasks", "frob"], "there is no `tasks frob`. One of: run, show, plan"),
        (["config", "shw"], "Did you mean show?"),
        (["config"], "config needs one of: show, check, trust, approvals, import"),
        (["refactor"], "refactor needs one of: rename, move, async"),
        (["refactor", "renam", "a", "b"], "there is no `refactor renam`. One of: rename, move"),
        (["models", "lst"], "there is no `models lst`. One of: list, fit, pull, rm, quantize, check"),
        (["models", "lst"], "Did you mean list? `fulgur models --help`"),
        (["models", "rm"], "models rm needs NAME"),
        (["models", "quantize", "x", "--bits", "5"], "choose from 4, 8"),
        (["complete"], "complete needs FILE:LINE:COL"),
        (["tasks", "run", "nope.md"], "nope.md: No such file"),
        (["serve", "--port", "99999"], "99999 is not a port number"),
        (["attach", "nope"], "this needs a terminal"),
        (["edit", "nope.py", "x"], "nope.py: No such file"),
        (["edit", "shop.py:nope", "rename x to y"], "shop.py has no nope"),
        (["edit", "shop.py:90-95", "x"], "there is no line 90"),
        (["complete", "shop.py:90:1"], "there is no line 90"),
        (["next", "nope.py"], "nope.py: No such file"),
        (["bench", "tui", "--frob"], "`fulgur bench tui --help`"),
    ],
)
def test_wrong_use_is_one_line_and_a_hint(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert said in told.err and told.out == ""
    assert len(told.err.splitlines()) <= 2


def test_models_alone_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    """The same as with `list`; a flag that belongs to an action is still one of the action's."""
    assert main(["models", "list"]) == 0
    listed = capsys.readouterr().out
    assert main(["models"]) == 0
    assert capsys.readouterr().out == listed != ""
    assert main(["models", "--json"]) == 2
    assert "It goes with a command: `fulgur models list --json`." in capsys.readouterr().err


def fulgur(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fulgur", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)  # type: ignore[call-overload, no-any-return]


def test_a_closed_output_is_no_traceback() -> None:
    command = f"{sys.executable} -m fulgur ask total >&-"
    done = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_deleted_folder_is_said(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && exec {sys.executable} -P -m fulgur ask total"
    done = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 1 and "the current folder was deleted" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_home_that_cannot_be_is_said_with_what_to_do() -> None:
    done = fulgur("config", "show", env={**os.environ, "FULGUR_HOME": "/dev/null/home"})
    assert done.returncode == 1 and "FULGUR_HOME names another folder" in done.stderr


@pytest.mark.parametrize("command", [["acp"], ["host", "--stdio"]])
def test_a_file_is_no_client(command: list[str], tmp_path: Path) -> None:
    done = fulgur(*command)  # nothing to read from
    assert done.returncode == 2 and "standard input is not a pipe" in done.stderr
    with (tmp_path / "answers").open("w") as answers:
        line = [sys.executable, "-m", "fulgur", *command]
        into_file = subprocess.run(line, input="{}\n", stdout=answers, stderr=subprocess.PIPE, text=True)
    assert into_file.returncode == 2 and "standard output is not a pipe" in into_file.stderr
    assert "Traceback" not in done.stderr + into_file.stderr


def test_the_help_lists_every_command_in_80_columns() -> None:
    assert sum(len(group) for group in GROUPS.values()) == len(COMMANDS)
    assert all(len(row) <= 80 for row in listed_commands().splitlines())
    shown = fulgur("--help", env={**os.environ, "COLUMNS": "80"}).stdout
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    assert max(len(row) for row in shown.splitlines()) <= 80


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help_that_fits(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and COMMANDS[command] in shown
    assert max(len(row) for row in shown.splitlines()) <= 80


def test_help_of_a_command_within_a_command_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tasks", "run", "--help"])
    assert "finished tasks are ticked off in it" in capsys.readouterr().out
