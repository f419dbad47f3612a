"""What people do all day, on the real screen: own commands, the shell, going back, searching, an editor, vi keys."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from terminal import CTRL_D, ENTER, ESC, Terminal

Start = Callable[..., Terminal]
CTRL_R, CTRL_G = "\x12", "\x07"


def test_a_command_of_ones_own_runs_outside_the_sandbox_and_the_model_sees_it(screen: Terminal, home: Path) -> None:
    screen.send("!echo by hand; cd ..; pwd > made-by-hand", ENTER)
    screen.wait("✓ $ echo by hand")
    assert "│ by hand" in screen.everything
    (session,) = (home / "sessions").glob("*.jsonl")
    assert "The person ran this themselves" in session.read_text()
    assert (home.parent / "made-by-hand").exists()


def test_escape_stops_a_command_of_ones_own(screen: Terminal) -> None:
    screen.send("!echo begun; sleep 60", ENTER)
    screen.wait("│ begun")
    screen.send(ESC)
    screen.wait("stopped: echo begun; sleep 60")
    screen.send("a short story", ENTER)
    screen.wait("220 tokens")


def test_rewind_puts_back_files_and_what_was_said(screen: Terminal, project: Path) -> None:
    screen.send("other way please", ENTER)
    screen.wait("7 tokens ·")
    screen.send("change the file", ENTER)
    screen.wait("42 tokens")
    assert (project / "app.py").read_text() == "x = 2\n"
    screen.send("/rewind 2", ENTER)
    screen.wait("back to before turn 2")
    assert (project / "app.py").read_text() == "x = 1\n"
    screen.wait(lambda: "› change the file" in screen.lines[-3:] or "› change the file" in screen.text)
    screen.send("\x15/rewind", ENTER)
    screen.wait("   1 other way please")
    assert "   2 change the file" not in screen.text


def test_new_begins_anew_and_clear_empties_the_screen(screen: Terminal, home: Path) -> None:
    screen.send("other way please", ENTER)
    screen.wait("7 tokens ·")
    screen.send("/new", ENTER)
    screen.wait("a new session; /resume ")
    screen.send("/clear", ENTER)
    screen.wait(lambda: "Right, going" not in screen.text)
    assert len(list((home / "sessions").glob("*.jsonl"))) == 3


def test_resume_is_searched_by_words_of_the_first_prompt(screen: Terminal) -> None:
    screen.send("other way please", ENTER)
    screen.wait("7 tokens ·")
    screen.send("/new", ENTER)
    screen.wait("a new session")
    screen.send("/resume other w")
    screen.wait("1 turn   other way please")


def test_commands_of_the_person_and_of_a_trusted_project(fulgur: Start, home: Path, project: Path) -> None:
    (home / "commands").mkdir()
    (home / "commands" / "away.md").write_text("---\ndescription: go away\n---\nGo the other way, $1!\n")
    (project / ".fulgur" / "commands").mkdir(parents=True)
    (project / ".fulgur" / "commands" / "evil.md").write_text("from the project")
    (home / "commands" / "copy.md").write_text("takes no name that there is")
    terminal = fulgur()
    terminal.wait("›")
    terminal.send("/aw")
    terminal.wait("go away")
    terminal.send("ay Tom", ENTER)
    terminal.wait("Right, going")
    assert "› /away Tom" in terminal.everything and "Go the other way, Tom!" not in terminal.everything
    terminal.send("/evil", ENTER)
    terminal.wait("there is no /evil")
    terminal.send("/copy", ENTER)
    terminal.wait("to the clipboard")


def test_a_command_that_fails_comes_back_as_it_was_typed(fulgur: Start, home: Path) -> None:
    (home / "commands").mkdir()
    (home / "commands" / "fails.md").write_text("The one that never answers.\n")
    terminal = fulgur()
    terminal.wait("›")
    terminal.send("/fails", ENTER)
    terminal.wait("out of memory")
    terminal.wait(lambda: terminal.text.count("› /fails") == 2)  # the turn's, and the input
    assert "The one that never" not in terminal.text


def test_a_long_warning_in_the_status_keeps_its_indent(fulgur: Start, project: Path) -> None:
    (project / ".fulgur").mkdir()
    (project / ".fulgur" / "config.toml").write_text('model = "other"\n')
    terminal = fulgur(columns=60)
    terminal.wait("›")
    terminal.send("/status", ENTER)
    terminal.wait("approvals")
    terminal.settle()
    rows = terminal.everything.split("\n")
    first = max(n for n, row in enumerate(rows) if row.startswith("  ! "))
    assert rows[first + 1].startswith("    ")


def test_the_models_plan_is_live_and_stays_with_the_session(fulgur: Start) -> None:
    terminal = fulgur()
    terminal.wait("›")
    terminal.send("work by a plan", ENTER)
    terminal.wait(lambda: "1 of 2 steps done\n✓ look\n◐ change it\n" in terminal.text)
    terminal.send(ESC)
    terminal.wait(lambda: "plan: 1 of 2 done · next: change it (/todo shows all)" in terminal.text)
    terminal.send(CTRL_D)
    assert terminal.exit_code() == 0
    again = fulgur("--resume")
    again.wait("plan: 1 of 2 done · next: change it")
    again.send("/todo", ENTER)
    again.wait("◐ change it")
    again.send("finish the plan", ENTER)
    again.wait("✓ look\n✓ change it\n")
    again.wait("tokens ·")
    assert "plan: " not in "\n".join(again.lines[-5:])


def test_a_command_that_begins_no_turn_is_shown_with_what_was_wrong(screen: Terminal) -> None:
    screen.send("/tasks", ENTER)
    screen.wait("`/plan WISH`, or `fulgur tasks plan WISH`, writes one.")
    screen.wait("› /tasks\n\n✗ ")


def test_commands_in_the_background_are_listed_looked_at_and_ended(screen: Terminal) -> None:
    screen.send("start a server", ENTER)
    screen.wait(lambda: " · 1 job · " in screen.lines[-1] or " · 1 job · " in screen.text)
    screen.wait("tokens ·")
    screen.send("/model scripted-2", ENTER)
    screen.wait("the next turn is for scripted-2")
    screen.send("/jobs", ENTER)
    screen.wait(lambda: re.search(r"job1  running for \d+ s  \$ echo serving; sleep 612345", screen.everything))
    screen.send("/jobs job1", ENTER)
    screen.wait("│ serving")
    assert sleeping()
    screen.send("/jobs stop job1", ENTER)
    screen.wait("job1 was ended: echo serving; sleep 612345")
    screen.wait(lambda: " 1 job " not in screen.text)
    assert not sleeping()
    screen.send("start a server again", ENTER)
    screen.wait(lambda: " · 1 job · " in screen.text)
    screen.wait(lambda: screen.everything.count("tokens ·") == 2)
    screen.send(CTRL_D)
    assert screen.exit_code() == 0
    assert "ended: echo serving; sleep 612345" in screen.everything and not sleeping()


def sleeping() -> bool:
    """Whether that command still runs somewhere."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if place.read_bytes() == b"sleep\x00612345\x00":
                return True
    return False


def test_the_prompt_can_stand_on_the_command_line(fulgur: Start) -> None:
    terminal = fulgur("other way please")
    terminal.wait("Right, going the other way.")


def test_the_history_is_searched(screen: Terminal) -> None:
    for text in ("a short story", "other way please"):
        screen.send(text, ENTER)
        screen.wait(lambda text=text: f"› {text}" in screen.everything)
        screen.wait("tokens ·" if text != "a short story" else "220 tokens")
    screen.send(CTRL_R, "short")
    screen.wait("history: short")
    screen.wait(lambda: any(line.strip() == "› a short story" for line in screen.lines[-4:]))  # while one types
    screen.send(ENTER, " again")
    screen.wait(lambda: any(line.strip() == "› a short story again" for line in screen.lines[-4:]))


def test_the_draft_is_written_in_an_editor(fulgur: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "the other way" > "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    terminal = fulgur()
    terminal.wait("›")
    terminal.send(CTRL_G)
    terminal.wait("› the other way")


def test_vi_keys(fulgur: Start) -> None:
    terminal = fulgur("-c", "tui.vim=true")
    terminal.wait("›")
    terminal.send("wrong other way", ESC)
    terminal.settle(0.2)
    terminal.send("0dw")
    terminal.wait(lambda: any(line.strip() == "› other way" for line in terminal.lines))
    terminal.send(ENTER)
    terminal.wait("Right, going")


def test_export_and_copy(screen: Terminal, project: Path) -> None:
    screen.send("markdown please", ENTER)
    screen.wait("tokens ·")
    screen.send("/export talk.md", ENTER)
    screen.wait("written to")
    text = (project / "talk.md").read_text()
    assert "## Prompt\n\nmarkdown please" in text and "```python\ndef f():" in text
    screen.send("/copy", ENTER)
    screen.wait("to the clipboard")
    assert base64.b64encode(b"# Title\n\nSome `code`")[:20] in screen.raw


def test_permissions_are_shown_and_changed(screen: Terminal) -> None:
    screen.send("/permissions read-only", ENTER)
    screen.wait("sandbox     read-only")
    screen.send("/permissions everything", ENTER)
    screen.wait("/permissions everything?")


def test_a_long_turn_is_told(fulgur: Start) -> None:
    terminal = fulgur("-c", "approval_policy=untrusted", "-c", "tui.notify=osc777")
    terminal.wait("›")
    terminal.send("run a command", ENTER)
    terminal.wait("allow once")
    assert b"\x1b]777;notify;fulgur;fulgur is waiting for your answer\x07" in terminal.raw
    terminal.send(CTRL_D)
