"""The real program in a real terminal against the real server: speaking, steering, queueing, stopping, leaving."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from terminal import CTRL_C, CTRL_D, CTRL_J, ENTER, ESC, TAB, UP, Terminal

from fulgur.bench.scripted_server import ScriptedServer


def words(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"w(\d{4})", text)]


def input_row(terminal: Terminal) -> str:
    """The row with the draft: the last one that begins with the prompt sign."""
    return next((line for line in reversed(terminal.lines) if line.startswith("›")), "")


def test_an_answer_with_its_numbers(screen: Terminal) -> None:
    screen.send("tell a short story", ENTER)
    screen.wait("w0219")
    screen.wait(
        lambda: re.search(r"scripted · \d+ tok/s · first \d+ ms · ctx .*% · \$0\.", screen.lines[-1] + screen.text)
    )
    screen.wait("220 tokens")
    assert words(screen.everything) == list(range(220))  # nothing twice, nothing missing
    assert "› tell a short story" in screen.everything


def test_enter_redirects_in_mid_stream_and_the_partial_answer_stays(screen: Terminal) -> None:
    screen.send("tell a long story", ENTER)
    screen.wait("w0040")
    screen.send("no, the other way", ENTER)
    screen.wait("Right, going the other way.")
    text = screen.everything
    said = words(text)
    assert said == list(range(len(said))) and 40 < len(said) < 9000
    last_word = text.rindex(f"w{said[-1]:04}")
    assert last_word < text.index("› no, the other way") < text.index("Right, going the other way.")


def test_tab_queues_for_after_the_turn(screen: Terminal) -> None:
    screen.send("tell a short story", ENTER)
    screen.wait("w0010")
    screen.send("and then this", TAB)
    screen.wait("queued 1: and then this")
    screen.wait("You said: and then this")
    text = screen.everything
    assert text.index("w0219") < text.index("› and then this")
    assert "queued" not in screen.text


def test_what_a_stop_left_queued_is_sent_by_enter(screen: Terminal) -> None:
    screen.send("tell a long story", ENTER)
    screen.wait("w0010")
    screen.send("and then this", TAB)
    screen.wait("queued 1: and then this")
    screen.send(ESC)
    screen.wait("Enter sends what is queued")
    screen.send(ENTER)
    screen.wait("You said: and then this")
    assert "queued" not in screen.text


def test_up_takes_back_what_is_queued(screen: Terminal) -> None:
    screen.send("tell a long story", ENTER)
    screen.wait("w0010")
    screen.send("first", TAB)
    screen.wait("queued 1: first")
    screen.send("second", TAB)
    screen.wait("queued 2: second")
    screen.wait("Tab queues · Up unqueues")
    screen.send(UP)
    screen.wait(lambda: input_row(screen) == "› second" and "queued 2" not in screen.text)
    screen.send(" thoughts", TAB)  # it can be written differently, and queued again
    screen.wait("queued 2: second thoughts")
    screen.send(ESC)
    screen.wait("Up takes the last one back")
    screen.send(UP)
    screen.wait(lambda: input_row(screen) == "› second thoughts")
    screen.send(CTRL_C, UP)
    screen.wait(lambda: input_row(screen) == "› first" and "queued" not in screen.text)


def test_escape_stops_and_keeps_what_was_said(screen: Terminal) -> None:
    screen.send("tell a long story", ENTER)
    screen.wait("w0020")
    screen.send("my draft", ESC)
    screen.wait("stopped; the answer so far is kept")
    said = words(screen.everything)
    assert said == list(range(len(said))) and len(said) >= 20
    screen.wait(lambda: input_row(screen) == "› my draft")
    screen.send(ENTER)
    screen.wait("You said: my draft")


def test_control_c_stops_once_and_leaves_twice(screen: Terminal) -> None:
    screen.send("tell a long story", ENTER)
    screen.wait("w0010")
    screen.send(CTRL_C)
    screen.wait("stopped; the answer so far is kept")
    screen.wait("Ctrl-C again to leave")
    screen.send(CTRL_C)
    assert screen.exit_code() == 130
    assert "w0010" in screen.everything and "fulgur --resume" in screen.everything


def test_control_c_never_leaves_with_a_draft(screen: Terminal) -> None:
    screen.send("tell a long story", ENTER)
    screen.wait("w0010")
    screen.send(CTRL_C)
    screen.wait("stopped; the answer so far is kept")
    screen.send("a new draft")
    screen.wait(lambda: input_row(screen) == "› a new draft")
    screen.send(CTRL_C)  # within two seconds of the first
    screen.wait(lambda: input_row(screen) == "›")
    screen.send(UP)
    screen.wait(lambda: input_row(screen) == "› a new draft")
    screen.send(ENTER)
    screen.wait("You said: a new draft")
    screen.send(CTRL_C, CTRL_C)
    assert screen.exit_code() == 130


def test_control_c_stops_what_was_sent_since_the_last_one(screen: Terminal) -> None:
    screen.send("half a thought", CTRL_C)
    screen.wait("Ctrl-C again to leave")
    screen.send("tell a long story", ENTER)
    screen.wait("w0010")
    assert "again to leave" not in screen.text
    screen.send(CTRL_C)  # within two seconds of the first, on a machine that is not busy
    screen.wait("stopped; the answer so far is kept")
    screen.send("still here", ENTER)
    screen.wait("You said: still here")


def test_the_first_screen_is_quiet_about_the_sandbox(screen: Terminal) -> None:
    screen.settle()
    assert "!" not in screen.everything
    screen.send("/status", ENTER)
    screen.wait("approvals")


def test_control_d_leaves_with_zero(screen: Terminal) -> None:
    screen.send(CTRL_D)
    assert screen.exit_code() == 0


def test_what_is_typed_before_the_agent_is_there_is_sent_when_it_is(fulgur: Callable[..., Terminal]) -> None:
    terminal = fulgur()
    terminal.wait("›")
    terminal.send("early bird", ENTER)
    terminal.wait("You said: early bird")


def test_history_and_an_unsent_draft_outlive_the_program(fulgur: Callable[..., Terminal]) -> None:
    first = fulgur()
    first.wait("›")
    first.send("alpha", ENTER)
    first.wait("You said: alpha")
    first.send("an unsent draft")
    first.wait("› an unsent draft")
    first.program.kill(15)
    assert first.exit_code() == 128 + 15
    second = fulgur()
    second.wait("›")
    second.send(UP)
    second.wait("› an unsent draft")
    second.send(UP)
    second.wait("› alpha")


def test_several_lines_and_a_paste_are_one_message(screen: Terminal) -> None:
    screen.send("one", CTRL_J, "two\\", ENTER, "\x1b[200~three\nfour\x1b[201~")
    screen.wait("  four")
    screen.send(ENTER)
    screen.wait("You said: one")
    assert "› one\n  two\n  three\n  four" in screen.everything


def test_files_and_commands_are_completed(screen: Terminal) -> None:
    screen.send("look at @ap")
    screen.wait("❯ @app.py")
    screen.wait("@apple.txt")
    screen.send("pl", TAB)
    screen.wait("› look at @apple.txt")
    screen.send("\x15", "/sta")
    screen.wait("❯ /status")
    screen.send(ENTER)
    screen.wait("sandbox")
    screen.wait("model_provider")


def test_markdown_has_colours(screen: Terminal) -> None:
    screen.send("markdown please", ENTER)
    screen.wait("return 1")
    screen.wait("tokens ·")
    assert screen.colour_of("Title") == "blue"
    assert screen.colour_of("code") == "cyan"
    assert screen.colour_of("return") == "magenta"


def test_an_error_is_shown_and_the_next_prompt_works(screen: Terminal) -> None:
    screen.send("the engine dies", ENTER)
    screen.wait("✗ ")
    assert "Half an ans" in screen.everything
    screen.send("still there?", ENTER)
    screen.wait("You said: still there?")


def test_rows_fit_an_80_by_24_terminal_and_a_narrow_one(fulgur: Callable[..., Terminal]) -> None:
    for columns, rows in ((80, 24), (38, 12)):
        terminal = fulgur(columns=columns, rows=rows)
        terminal.wait("›")
        terminal.send("tell a short story", ENTER)
        terminal.wait("220 tokens")
        assert words(terminal.everything) == list(range(220))
        assert terminal.lines[-1].strip() or terminal.lines[-2].strip()  # the status line is on screen


@pytest.fixture
def mortal(home: Path, tmp_path: Path, server: ScriptedServer) -> Iterator[ScriptedServer]:
    """A server of its own, to be killed."""
    own = tmp_path / "own"
    own.mkdir()
    with ScriptedServer(own, (server.home / "script.toml").read_text()) as running:
        (home / "config.toml").write_text((own / "config.toml").read_text())
        yield running


def test_a_server_that_comes_back_goes_on_in_mid_answer(mortal: ScriptedServer, screen: Terminal) -> None:
    screen.send("tell a short story", ENTER)
    screen.wait("w0020")
    screen.send("my draft")
    mortal.kill()
    mortal.start()
    screen.wait("w0219")
    screen.wait(" tokens ·")
    assert words(screen.everything) == list(range(220))  # it goes on from what it had said
    screen.wait(lambda: input_row(screen) == "› my draft")
    assert "✗" not in screen.everything


def test_the_draft_survives_a_server_that_stays_away(mortal: ScriptedServer, screen: Terminal) -> None:
    screen.send("tell a long story", ENTER)
    screen.wait("w0020")
    screen.send("what I was about to say")
    mortal.kill()
    screen.wait("✗ No server answers")
    said = words(screen.everything)
    assert said == list(range(len(said)))
    screen.wait(lambda: input_row(screen) == "› what I was about to say")
    mortal.start()
    screen.send(ENTER)
    screen.wait("You said: what I was about to say")


def test_a_wrong_config_is_said_before_the_screen_opens(fulgur: Callable[..., Terminal]) -> None:
    terminal = fulgur("-c", "modle=x")
    assert terminal.exit_code() == 2
    assert "model" in terminal.everything


def test_a_session_that_is_not_there_is_said_before_the_screen_opens(fulgur: Callable[..., Terminal]) -> None:
    for name, said in ((), "no session to resume in"), (("nope",), "no session named 'nope'"):
        terminal = fulgur("--resume", *name)
        terminal.wait(said)
        assert terminal.exit_code() == 2


def test_resume_takes_a_prompt_too(fulgur: Callable[..., Terminal]) -> None:
    first = fulgur("say one")
    first.wait("You said: say one")
    first.wait("tokens ·")
    first.send(CTRL_D)
    assert first.exit_code() == 0
    second = fulgur("--resume", "say two")
    second.wait("You said: say two")
    assert "1 turn" in second.everything and "You said: say one" in second.everything


def test_a_prompt_that_failed_comes_back_into_the_input(screen: Terminal) -> None:
    screen.send("the one that never answers", ENTER)
    screen.wait("request failed (out of memory); retrying in 0.5 s")
    screen.wait("✗ out of memory")
    screen.wait(lambda: input_row(screen) == "› the one that never answers")


def test_compact_shows_that_it_works_and_stops(screen: Terminal) -> None:
    screen.send("tell a short story", ENTER)
    screen.wait("220 tokens")
    screen.send("/compact", ENTER)
    screen.wait(lambda: re.search(r"compacting: \S+ tokens read, [1-9]\S* written", screen.text))
    screen.send(ESC)
    screen.wait("✗ stopped: nothing was compacted")
    assert "compacting" not in screen.text


def test_the_context_is_shown_after_a_resume(fulgur: Callable[..., Terminal]) -> None:
    first = fulgur()
    first.wait("›")
    first.send("tell a short story", ENTER)
    first.wait("220 tokens")
    first.send(CTRL_D)
    first.exit_code()
    second = fulgur("--resume")
    second.wait("resumed ")
    second.wait(lambda: re.search(r"ctx [1-9]\S*/200k", second.text))


def test_model_lists_what_could_answer(screen: Terminal) -> None:
    screen.send("/model", ENTER)
    screen.wait(lambda: re.search(r"scripted-2 +200k context · \$1 in, \$2 out a million", screen.text))
    screen.wait("fulgur-60m  2.0k context · edits only")


def test_what_runs_on_this_machine_is_said_in_one_row(fulgur: Callable[..., Terminal], server: ScriptedServer) -> None:
    there = f"model_providers.ollama.base_url=http://127.0.0.1:{server.port}/v1"
    screen = fulgur("-c", "features.discovery=true", "-c", there)
    screen.wait(lambda: re.search(r"· also here: .*ollama.* \(/model lists their models\)", screen.text))
    screen.send("/model olla")
    screen.wait("❯ ollama:scripted")
