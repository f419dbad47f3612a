"""Tools on the real screen: questions and their answers, diffs, undo, sessions and models by slash command."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from terminal import CTRL_D, ENTER, ESC, Terminal

from fulgur.ui.tui.approvals import ARM_SECONDS

Start = Callable[..., Terminal]
ASK = ("-c", "approval_policy=untrusted")


def asked(terminal: Terminal) -> None:
    """Until the question is there and takes keys."""
    terminal.wait(lambda: "? $ touch made.txt" in terminal.text)
    time.sleep(ARM_SECONDS + 0.1)
    terminal.pump()


def open_question(fulgur: Start) -> Terminal:
    terminal = fulgur(*ASK)
    terminal.wait("›")
    terminal.send("run a command", ENTER)
    asked(terminal)
    assert "asked before every change" in terminal.text
    return terminal


def test_yes_runs_it_once_and_asks_again(fulgur: Start, project: Path) -> None:
    terminal = open_question(fulgur)
    assert not (project / "made.txt").exists()
    terminal.send("y")
    terminal.wait("The call is over.")
    assert (project / "made.txt").exists() and "allowed once" in terminal.everything
    terminal.send("run a command again", ENTER)
    asked(terminal)


def test_a_question_keeps_its_words_whole_on_a_narrow_screen(fulgur: Start) -> None:
    terminal = fulgur(*ASK, columns=40)
    terminal.wait("›")
    terminal.send("run a command", ENTER)
    terminal.wait(lambda: "? $ touch made.txt" in terminal.text)
    terminal.settle()
    assert "  asked before every change:" in terminal.lines
    assert "  approval_policy is untrusted" in terminal.lines


def test_always_is_remembered_also_by_the_next_session(fulgur: Start) -> None:
    terminal = open_question(fulgur)
    assert "always `touch …`" in terminal.text
    terminal.send("a")
    terminal.wait("The call is over.")
    terminal.send(CTRL_D)
    assert terminal.exit_code() == 0
    again = fulgur(*ASK)
    again.wait("›")
    again.send("run a command", ENTER)
    again.wait("The call is over.")
    assert "allow once" not in again.everything


def test_escape_keeps_what_a_command_had_printed(fulgur: Start) -> None:
    terminal = fulgur()
    terminal.wait("›")
    terminal.send("run a slow command", ENTER)
    terminal.wait("│ second")
    terminal.send("and this", ENTER)
    terminal.wait("your message is sent when the command ends")
    terminal.send(ESC)
    terminal.wait("stopped; the answer so far is kept")
    text = terminal.everything
    assert "✗ $ echo first; echo second; sleep 60" in text
    assert "  │ first\n  │ second\n  │ [stopped]" in text


def test_no_takes_a_reason_that_the_model_reads(fulgur: Start, project: Path) -> None:
    terminal = open_question(fulgur)
    terminal.send("n")
    terminal.wait("no, because:")
    terminal.send("any other name", ENTER)
    terminal.wait("› any other name")
    terminal.wait("not allowed")
    assert not (project / "made.txt").exists()


def test_a_draft_put_aside_for_a_question_is_kept_when_the_program_ends(fulgur: Start, home: Path) -> None:
    terminal = fulgur(*ASK)
    terminal.wait("›")
    terminal.send("run a command", ENTER, "half a thought")
    terminal.wait("your draft comes back after the answer")
    assert "› half a thought" not in terminal.text
    terminal.program.kill(15)
    assert terminal.exit_code() == 128 + 15
    assert "+half a thought" in (home / "history").read_text()


def test_a_sentence_is_a_no_and_escape_stops(fulgur: Start, project: Path) -> None:
    terminal = open_question(fulgur)
    terminal.send("say something else", ENTER)
    terminal.wait("› say something else")
    terminal.wait("tokens ·")
    terminal.send("run a command", ENTER)
    terminal.wait(lambda: terminal.text.count("? $ touch made.txt") == 1 and "allow once" in terminal.text)
    time.sleep(ARM_SECONDS + 0.4)
    terminal.send(ESC)
    terminal.wait("stopped; the answer so far is kept")
    assert not (project / "made.txt").exists()


def test_a_change_is_shown_in_colour_and_undone(screen: Terminal, project: Path) -> None:
    screen.send("change the file", ENTER)
    screen.wait("The call is over.")
    screen.wait("tokens ·")
    assert (project / "app.py").read_text() == "x = 2\n"
    assert "• Edited app.py  +1 −1" in screen.everything
    assert screen.colour_of("- x = 1") == "red" and screen.colour_of("+ x = 2") == "green"
    screen.send("/diff", ENTER)
    screen.wait(lambda: screen.everything.count("+ x = 2") == 2)
    screen.send("/undo", ENTER)
    screen.wait("undone: app.py")
    assert (project / "app.py").read_text() == "x = 1\n"


def test_an_edit_is_taken_hunk_by_hunk(fulgur: Start, project: Path, home: Path) -> None:
    (project / "three.py").write_text("a = 1\n\n\nb = 2\n\n\nc = 3\n")
    terminal = fulgur(*ASK)
    terminal.wait("›")
    terminal.send("change three places", ENTER)
    terminal.wait("choose among 3 hunks")
    terminal.wait(lambda: any(row.startswith("  n no, with a reason   Esc stop") for row in terminal.lines))
    assert "+ c = 30" in terminal.everything
    time.sleep(ARM_SECONDS + 0.3)
    terminal.send("h")
    terminal.wait(lambda: "hunk 1 of 3" in terminal.text)
    terminal.send("n", ESC)  # back: nothing was answered yet
    terminal.wait(lambda: "choose among 3 hunks" in terminal.text)
    terminal.send("h", "y")
    terminal.wait(lambda: "hunk 2 of 3" in terminal.text and "+ b = 20" in terminal.text)
    terminal.send("n", "y")
    terminal.wait("without 1 of 3 hunks, because:")
    terminal.send("b is right", ENTER)
    terminal.wait("› b is right")
    terminal.wait("allowed once, without 1 of its hunks")
    terminal.wait("• Edited three.py  +2 −2")
    assert (project / "three.py").read_text() == "a = 10\n\n\nb = 2\n\n\nc = 30\n"
    (session,) = (home / "sessions").glob("*.jsonl")
    assert "left out 1 of 3 hunks. These lines were not changed:" in session.read_text()


def test_a_session_goes_on_after_a_kill(fulgur: Start) -> None:
    first = fulgur()
    first.wait("›")
    first.send("tell a short story", ENTER)
    first.wait("220 tokens")
    first.program.kill()
    second = fulgur("--resume")
    second.wait("w0219")
    assert "› tell a short story" in second.everything
    second.send("and now", ENTER)
    second.wait("You said: and now")
    second.send("/resume", ENTER)
    second.wait("2 turns  tell a short story")


def test_commands_say_what_they_did(screen: Terminal) -> None:
    screen.send("/model", ENTER)
    screen.wait("  scripted")
    screen.send("/fast on", ENTER)
    screen.wait("fast tier on")
    screen.send("/help", ENTER)
    screen.wait("queue for after it")
    screen.send("/frok", ENTER)
    screen.wait("Did you mean /fork?")
    screen.send("/skills", ENTER)
    screen.wait("the project's own hooks and skills are ignored")
    screen.send("/fork", ENTER)
    screen.wait("a copy from here")


def test_another_model_answers_and_the_status_line_names_it(screen: Terminal) -> None:
    screen.send("/model scripted-2", ENTER)
    screen.wait("the next turn is for scripted-2")
    screen.send("who are you", ENTER)
    screen.wait("You said: who are you")
    screen.wait(lambda: "  scripted-2 · " in screen.text and "tok/s" in screen.text)
    screen.wait(lambda: re.search(r"· \d+ tokens · ", screen.everything))  # the turn is over
    screen.send("/model nobody", ENTER)
    screen.wait("✗ ")
    screen.wait("scripted, scripted-2")  # what there is


def test_a_profile_changes_what_is_asked(screen: Terminal) -> None:
    screen.send("/profile careful", ENTER)
    screen.wait("profile careful: the next turn is for scripted-2")
    screen.wait(lambda: "workspace-write, untrusted" in screen.text)
    screen.send("run a command", ENTER)
    asked(screen)


def test_the_sandbox_refuses_and_the_screen_says_so(screen: Terminal) -> None:
    screen.send("break out", ENTER)
    screen.wait("✗ $ touch /usr/fulgur-was-here")
    screen.wait(lambda: re.search("Read-only file system|Permission denied", screen.everything))
    screen.wait("The call is over.")
    assert not Path("/usr/fulgur-was-here").exists()


def test_a_question_says_once_that_it_is_about_leaving_the_sandbox(screen: Terminal) -> None:
    screen.send("run it outside", ENTER)
    screen.wait("the model says: it needs the network")
    assert screen.text.count("outside the sandbox") == 1
    screen.wait("n no, with a reason")
    screen.send(ESC)
    screen.wait("stopped; the answer so far is kept")
