"""The parts of the screen by themselves: diffs, completion, approvals, the meter, the transcript's order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fulgur.protocol import agent as events
from fulgur.ui.foreign import uncoloured
from fulgur.ui.tui import approvals as approvals_module
from fulgur.ui.tui.approvals import Approvals
from fulgur.ui.tui.blocks import aside, count, duration, member_rows, tool_rows
from fulgur.ui.tui.complete import Choice, Completer
from fulgur.ui.tui.diff import diff_rows
from fulgur.ui.tui.draft import Draft
from fulgur.ui.tui.files import FileIndex
from fulgur.ui.tui.outbox import Outbox
from fulgur.ui.tui.prompts import init_prompt, review_prompt
from fulgur.ui.tui.status import Meter
from fulgur.ui.tui.transcript import Transcript

DIFF = """--- a/app.py
+++ b/app.py
@@ -3,4 +3,5 @@ def main():
 import os

-x = 1
+x = 2
+++ counter
 done()
@@ -40,1 +41,1 @@
-old
+new
"""


def plain(rows: list[str]) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", row).rstrip() for row in rows]


def test_diff_rows_have_numbers_and_colours() -> None:
    rows = diff_rows(DIFF)
    assert plain(rows) == [
        "    3   import os",
        "    4",
        "    5 - x = 1",
        "    5 + x = 2",
        "    6 + ++ counter",
        "    7   done()",
        "     ⋮",
        "   40 - old",
        "   41 + new",
    ]
    assert "\x1b[31m- x = 1" in rows[2] and "\x1b[32m+ x = 2" in rows[3]


def test_a_long_diff_says_how_much_is_left() -> None:
    assert plain(diff_rows(DIFF, limit=4))[-1].strip() == "… 5 more rows, /diff shows all"


def completer(tmp_path: Path) -> Completer:
    for name in ("src/app.py", "src/apple.txt", "readme.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    commands = [Choice("/model"), Choice("/fast"), Choice("/fork")]
    made = Completer(
        FileIndex(tmp_path), commands, lambda name: [Choice("on"), Choice("off")] if name == "/fast" else []
    )
    made.files.refresh()
    made.files.wait(10)
    return made


def test_completion_of_commands_arguments_and_files(tmp_path: Path) -> None:
    made = completer(tmp_path)

    def choices(text: str) -> list[str]:
        menu = made.menu(text, len(text))
        return [choice.text for choice in menu.choices] if menu else []

    assert choices("/f") == ["/fast", "/fork"]
    assert choices("/fast o") == ["on", "off"]
    assert choices("look at @app") == ["@src/app.py", "@src/apple.txt"]
    assert choices("look at @sat") == ["@src/apple.txt"]  # letters in this order
    assert choices("mail me@app") == []
    assert choices("a /f") == []


def test_environments_and_caches_are_not_offered_without_a_gitignore(tmp_path: Path) -> None:
    for name in (".venv/lib/apply.py", "__pycache__/app.cpython-311.pyc", "node_modules/app.js"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    menu = completer(tmp_path).menu("@app", 4)
    assert menu is not None and [choice.text for choice in menu.choices] == ["@src/app.py", "@src/apple.txt"]


def test_accepting_a_file_keeps_the_rest_of_the_draft(tmp_path: Path) -> None:
    draft = Draft(tmp_path / "history", completer(tmp_path))
    draft.give("fix @app please")
    draft.buffer.cursor_position = len("fix @app")
    assert draft.menu is not None
    assert draft.accept(False, and_run=True) is False
    assert draft.text == "fix @src/app.py please"


def test_enter_sends_a_draft_whose_file_is_named_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/app.pyi").write_text("")  # another file that fits keeps the menu open
    draft = Draft(tmp_path / "history", completer(tmp_path))
    draft.buffer.insert_text("fix @src/app.py")
    assert draft.menu is not None
    assert draft.accept(False, and_run=True) is True
    assert draft.text == "fix @src/app.py"


def test_bytes_that_are_no_text_can_be_sent(tmp_path: Path) -> None:
    """As a terminal pastes them from a Latin-1 file, or types them where the locale is no UTF-8."""
    for typed, sent in (("caf\udce9", "caf\ufffd"), ("caf\udcc3\udca9", "café")):
        draft = Draft(tmp_path / "history", completer(tmp_path))
        draft.buffer.insert_text(typed)
        assert draft.send() == sent and draft.text == ""
        draft.buffer.insert_text(typed)
        assert draft.take() == sent
        draft.buffer.insert_text(typed)
        draft.save()
        assert (tmp_path / "history").read_text().count(f"+{sent}\n") == 2
        (tmp_path / "history").unlink()


def asked(name: str) -> events.ApprovalAsked:
    return events.ApprovalAsked(turn=1, approval_id=name, call_id="c", title="$ rm x", reason="", prefix=("rm",))


def test_an_approval_takes_no_key_while_the_person_types(tmp_path: Path) -> None:
    draft = Draft(tmp_path / "history", completer(tmp_path))
    waiting = Approvals(draft)
    draft.buffer.insert_text("half a sent")
    waiting.ask(asked("1"))
    assert waiting.arm() is not None and not waiting.wants_key  # too early: the keys still belong to the draft
    draft.last_key -= approvals_module.STILL_SECONDS
    waiting._shown -= approvals_module.ARM_SECONDS
    assert waiting.arm() is None and waiting.wants_key and draft.text == ""
    draft.buffer.insert_text("typed since")
    waiting.settle("1")
    assert draft.text == "half a sent\ntyped since"


def test_approvals_of_parallel_calls_are_asked_one_after_another(tmp_path: Path) -> None:
    waiting = Approvals(Draft(tmp_path / "history", completer(tmp_path)))
    for name in ("1", "2", "3"):
        waiting.ask(asked(name))
    waiting.settle("2")  # answered by a remembered prefix meanwhile
    waiting.settle("1")
    assert waiting.current is not None and waiting.current.approval_id == "3"


def test_what_the_agent_never_took_up_is_given_back() -> None:
    box = Outbox(lambda agent, text: None)
    box.send(None, "submit", "first")
    box.send(None, "steer", "second")
    box.taken("first")
    assert box.take_back() == ["second"] and box.pending == []


def usage(**changes: object) -> events.UsageReported:
    fields = {
        "turn": 1,
        "model": "m",
        "input_tokens": 10,
        "cached_tokens": 0,
        "output_tokens": 20,
        "tokens_per_second": 1234.0,
        "ttft_seconds": 0.08,
        "context_used": 30_000,
        "context_limit": 32_768,
        "cost": 0.5,
    }
    return events.UsageReported(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_status_line_shows_the_reported_numbers_and_drops_what_does_not_fit() -> None:
    meter = Meter()
    meter.start_turn()
    meter.report(usage())
    line = "".join(text for _, text in meter.fragments(100))
    assert line == "  m · 1,234 tok/s · first 80 ms · ctx 30.0k/32.8k 92% · $0.5000"
    meter.report(usage())
    assert "$1.00" in "".join(text for _, text in meter.fragments(100))  # the cost adds up
    assert "".join(text for _, text in meter.fragments(24)) == "  m · 1,234 tok/s"
    assert "".join(text for _, text in meter.fragments(27)) == "  m · 1,234 tok/s · $1.00"  # what is short still fits


def test_a_turn_that_could_not_begin_took_no_time() -> None:
    """Such as one that cannot be saved: the numbers of the turn before are not shown again."""
    meter = Meter()
    meter.start_turn()
    assert meter.end_turn() is not None
    assert meter.end_turn() is None


@pytest.mark.parametrize("prompt", [init_prompt(), review_prompt("")], ids=["init", "review"])
def test_a_prompt_is_folded_by_the_screen_alone(prompt: str) -> None:
    assert all(line.endswith((".", "!")) for line in prompt.split("\n"))


def test_a_little_context_is_not_none() -> None:
    meter = Meter()
    for used, shown in ((0, "ctx 0/200k 0%"), (634, "ctx 634/200k <1%"), (199_900, "ctx 199k/200k 100%")):
        meter.context(used, 200_000)
        assert shown in "".join(text for _, text in meter.fragments(100))


def test_an_answer_that_failed_has_no_rate() -> None:
    meter = Meter()
    meter.start_turn()
    meter.report(usage(output_tokens=0, tokens_per_second=0.0, ttft_seconds=0.0, cost=None))
    assert "".join(text for _, text in meter.fragments(100)) == "  m · ctx 30.0k/32.8k 92%"


def test_the_end_of_a_turn_says_what_was_drafted_and_the_raw_rate() -> None:
    meter = Meter()
    meter.start_turn(copies=True)
    meter.report(usage(output_tokens=100, tokens_per_second=1000.0, draft_tokens=95, accepted_tokens=80))
    wanted = "100 tokens · 1,000 tok/s with copied text, 200 without · 150 ms"
    assert meter.summary(0.15) == wanted


def test_a_model_that_was_not_asked_for_is_named_as_such() -> None:
    meter = Meter()
    meter.ask_for("big")
    meter.report(usage(model="big-2026-11"))
    assert meter.fragments(100)[1] == ("class:strong", "big-2026-11")
    meter.report(usage(model="small"))
    assert meter.fragments(100)[1] == ("class:warn", "small, not big")


def test_events_keep_their_order_and_the_partial_answer_stays() -> None:
    transcript = Transcript(60)
    for event in (
        events.TurnStarted(turn=1, text="do it", way="tools", reason="tool loop"),
        events.MessageDelta(turn=1, text="First I wi"),
        events.TurnSteered(turn=1, text="no, other"),
        events.MessageDelta(turn=1, text="Right."),
        events.ToolStarted(turn=1, call_id="a", name="shell", title="$ ls"),
        events.ToolFinished(turn=1, call_id="a", name="shell", ok=False, output="no such file", seconds=0.01),
        events.GuardReported(turn=1, check="parses"),
        events.GuardReported(turn=1, check="names exist"),
        events.MessageDelta(turn=1, text="Hm"),
        events.TurnStopped(turn=1, text="…"),
    ):
        transcript.on_event(event)
    shown = [row for row in plain(transcript.take()) if row]
    assert shown == [
        "› do it",
        "· tool loop",
        "First I wi",
        "› no, other",
        "Right.",
        "✗ $ ls",
        "  │ no such file",
        "· checked: parses, names exist",
        "Hm",
        "■ stopped; the answer so far is kept",
    ]


def test_a_rewrite_that_was_cut_off_stays_readable_and_an_applied_one_is_its_diff() -> None:
    begun = events.ToolStarted(turn=1, call_id="e", name="rewrite", title="rewrite a.py:1-2")
    done = events.ToolFinished(turn=1, call_id="e", name="rewrite", ok=True, output="def f():\n    ret", seconds=0.01)
    cut, applied = Transcript(60), Transcript(60)
    for event in (begun, done, events.TurnSteered(turn=1, text="other")):
        cut.on_event(event)
    assert [row for row in plain(cut.take()) if row] == ["✓ rewrite a.py:1-2", "  │ def f():", "  │     ret", "› other"]
    change = events.FileChanged(turn=1, path="a.py", kind="modified", diff="@@ -1 +1 @@\n-a\n+b\n", added=1, removed=1)
    for event in (begun, done, change, events.TurnStopped(turn=1, text="")):
        applied.on_event(event)
    assert "def f" not in "".join(applied.take())


def test_long_output_of_a_call_is_cut_in_the_middle() -> None:
    rows = plain(tool_rows("$ x", "shell", True, "\n".join(map(str, range(50))), 2.0, 80))
    assert rows == ["✓ $ x  2.0 s", *(f"  │ {t}" for t in ("0", "1", "… 44 more lines", "46", "47", "48", "49"))]


def test_numbers_as_people_write_them() -> None:
    assert [count(950), count(12_400), count(131_072)] == ["950", "12.4k", "131k"]
    assert [duration(0.0853), duration(4.1), duration(75)] == ["85 ms", "4.1 s", "1 min 15 s"]


def test_an_approval_of_an_edit_shows_its_diff_once() -> None:
    transcript = Transcript(80)
    asked = events.ApprovalAsked(turn=1, approval_id="i", call_id="c", title="change app.py", reason="", diff=DIFF)
    transcript.on_event(asked)
    rows = plain(list(transcript.take()))
    assert rows[0] == "app.py" and "    5 + x = 2" in rows
    transcript.on_event(events.FileChanged(turn=1, path="app.py", kind="modified", diff=DIFF, added=3, removed=2))
    assert [row for row in plain(list(transcript.take())) if row] == ["• Edited app.py  +3 −2"]


@pytest.mark.parametrize(
    ("reports", "row"),
    [
        ([("tests", "")], "✓ checked: tests"),
        ([("tests", "tests not run: none")], "· tests not run: none"),
        ([], ""),
    ],
    ids=["ran", "not run", "no report"],
)
def test_a_check_mark_needs_the_tests(reports: list[tuple[str, str]], row: str) -> None:
    """Names were checked before the diff, the tests run after it: the mark waits for them."""
    transcript = Transcript(60)
    transcript.on_event(events.GuardReported(turn=1, check="names exist"))
    transcript.on_event(events.MessageDelta(turn=1, text="Edited."))
    for check, unchecked in reports:
        transcript.on_event(events.GuardReported(turn=1, check=check, unchecked=unchecked))
    transcript.on_event(events.TurnDone(turn=1, text="Edited."))
    rows = [line for line in plain(transcript.take()) if "checked" in line or "tests" in line]
    assert rows == ["· checked: names exist", *filter(None, [row])]


def test_a_problem_before_keeps_the_check_mark_away() -> None:
    transcript = Transcript(60)
    transcript.on_event(events.GuardReported(turn=1, check="names exist", problems=("line 3: no such name",)))
    transcript.on_event(events.GuardReported(turn=1, check="tests"))
    transcript.on_event(events.TurnDone(turn=1, text=""))
    assert "· checked: tests" in plain(transcript.take())


def test_what_a_subagent_could_not_merge_is_shown() -> None:
    diff = "--- a/a.txt\n+++ b/a.txt\n@@ -1,1 +1,1 @@\n-old\n+theirs\n"
    done = events.MemberFinished(
        member="b", role="b", model="m", models=("m",), how="done", text="did it", session_id="s",
        conflicts=("a.txt",), patch="/p/s.patch", diff=diff,
    )  # fmt: skip
    text = uncoloured("\n".join(member_rows(done, 80)))
    assert "not merged: a.txt changed meanwhile" in text and "/p/s.patch" in text and "    1 + theirs" in text


@pytest.mark.parametrize(
    ("width", "said"), [(100, "the sandbox is X, since Y does not work"), (40, "the sandbox is X")]
)
def test_an_aside_says_what_comes_first_and_no_half_words(width: int, said: str) -> None:
    (row,) = aside("the sandbox is X, since Y does not work: queues and shared memory are refused", width)
    assert re.sub(r"\x1b\[[\d;]*m", "", row) == f"· {said}  (/status)"
