"""The first screen: what answers, what it can do, what to try; and a way out when nothing answers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from terminal import ENTER, Terminal

from fulgur.protocol.agent import Way
from fulgur.protocol.session import Status
from fulgur.ui.cli import main
from fulgur.ui.tui.blocks import table
from fulgur.ui.tui.welcome import to_try, who_answers


def status(way: Way, workspace: Path, *abilities: str) -> Status:
    return Status(
        session_id="1", session_path="", workspace=str(workspace), model="m", answering_model="", provider="p",
        base_url="", way=way, way_reason="", abilities=abilities, fast=False, turns=0, running=False, queued=0,
        context_used=0, context_limit=0, sandbox="", approval_policy="", remembered=(), rules=(), config=(),
        warnings=(),
    )  # fmt: skip


def test_what_to_try_names_what_is_in_the_folder(tmp_path: Path) -> None:
    assert to_try(status("edit", tmp_path)) == []
    assert len(to_try(status("tools", tmp_path))) == 1  # nothing to read or to mend yet
    (tmp_path / "test_shop.py").write_text("def helper():\n    pass\n")
    (tmp_path / "zoo.py").write_text("def many(*names):\n    pass\n\n\ndef feed(animal):\n    return animal\n")
    assert to_try(status("edit", tmp_path)) == [
        "add a parameter debug=False to feed", "where is feed?", "rename feed to my_feed",
    ]  # fmt: skip
    (tmp_path / ".coveragerc").touch()
    assert "what does @zoo.py do?" in to_try(status("tools", tmp_path))
    (tmp_path / ".git").mkdir()
    assert "/review" in to_try(status("tools", tmp_path))
    (tmp_path / "inn.py").write_text("def feed(guest):\n    return guest\n\n\ndef sleep(hours):\n    return hours\n")
    assert to_try(status("edit", tmp_path))[2] == "rename sleep to my_sleep"  # there is one of it
    (tmp_path / "day.py").write_text("class Day:\n    def sleep(self):\n        pass\n")
    assert to_try(status("edit", tmp_path))[2] == "rename feed to my_feed in inn.py"


def test_what_to_try_prefers_the_code_of_the_project(tmp_path: Path) -> None:
    beside = ("docs/conf.py", "examples/repo/repo.py", "benchmarks/speed.py", "scripts/release.py", "noxfile.py")
    for number, file in enumerate((*beside, "setup.py", "tasks.py")):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f"def pull_{'abcdefg'[number]}(remote):\n    return remote\n")
    assert to_try(status("edit", tmp_path))[1] == "where is pull_e?"  # there is nothing else: the first file
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "tasks.py").write_text("def feed(animal):\n    return animal\n")
    assert to_try(status("edit", tmp_path))[2] == "rename feed to my_feed"
    (tmp_path / "examples" / "zoo.py").write_text("def feed(animal):\n    return animal\n")
    assert to_try(status("edit", tmp_path))[2] == "rename feed to my_feed in zoo/tasks.py"


def test_what_to_try_looks_past_many_files_of_the_tests(tmp_path: Path) -> None:
    (tmp_path / "tests" / "cases").mkdir(parents=True)
    for number in range(500):
        (tmp_path / "tests" / "cases" / f"{number}.toml").touch()
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "house.py").write_text("def feed(animal):\n    return animal\n")
    assert to_try(status("edit", tmp_path))[1] == "where is feed?"
    assert to_try(status("chat", tmp_path))[0] == "what does @zoo/house.py do?"


@pytest.mark.parametrize(
    ("way", "abilities", "said"),
    [
        ("edit", ("edit",), "m answers: it edits code that you name; it does not chat or run commands"),
        ("tools", ("tools", "vision"), "m answers: it reads and edits files and runs commands, and it sees images"),
        ("chat", ("chat",), "m answers: it calls no tools, so it changes no files"),
    ],
)
def test_what_answers_is_said_in_words(way: Way, abilities: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert who_answers(status(way, tmp_path, *abilities), None).startswith(said)


def test_two_models_are_named_both(tmp_path: Path) -> None:
    assert who_answers(status("edit", tmp_path), ("a", "b")).startswith("a (fast) or b (deep) answers")


def test_a_model_can_be_chosen_when_the_configured_one_is_not_there(fulgur: Callable[..., Terminal]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # held, and nobody listens
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
        screen = fulgur("-c", "model_provider=box", "-c", f"model_providers.box.base_url={address}")
        screen.wait(f"✗ No server answers at {address}: Connection refused")
        screen.wait("/model lists other models")
        screen.send("/model", ENTER)
        screen.wait("local:fulgur-60m  embedded, edits only")
        screen.send("/model scripted:scripted", ENTER)
        screen.wait("· scripted answers: it reads and edits files and runs commands")
        screen.wait("  try  how does this project fit together?")
        screen.send("go the other way", ENTER)
        screen.wait("Right, going the other way.")
        assert "scripted works with tools" not in screen.everything  # said once, in words


def test_a_table_keeps_within_a_narrow_screen() -> None:
    rows = table([("/review [COMMIT|branch NAME]", "look for bugs in the working tree, a commit or a branch")], 40)
    plain = [row.replace("\x1b[2m", "").replace("\x1b[0m", "") for row in rows]
    assert plain == [
        "  /review [COMMIT|branch NAME]", "    look for bugs in the working tree, a", "    commit or a branch",
    ]  # fmt: skip


def test_a_word_that_is_no_command_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exce", "do it"]) == 2
    assert "there is no command exce\n  Did you mean exec?" in capsys.readouterr().err
