"""Subagents in a real terminal: three at once with three models, one of them redirected."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from terminal import ENTER, Terminal

from fulgur.bench.scripted_server import ScriptedServer
from fulgur.protocol.agent import VariantInfo
from fulgur.ui.tui.variants import variant_rows

SCRIPT = """
rate = 300
[[reply]]
match = "the other way"
steps = [{text = "I went the other way."}]
[[reply]]
match = "slow part"
steps = [{tokens = 4000}]
[[reply]]
match = "quick part"
steps = [{text = "The quick part is done."}]
[[reply]]
after = "function_call_output"
steps = [{text = "All three are back."}]
[[reply]]
match = "share it"
[[reply.steps]]
call = "delegate"
arguments = {role = "one", task = "the quick part"}
[[reply.steps]]
call = "delegate"
arguments = {role = "two", task = "the slow part"}
[[reply.steps]]
call = "delegate"
arguments = {role = "three", task = "the quick part"}
"""


@pytest.fixture
def crew(home: Path, tmp_path: Path) -> Iterator[None]:
    own = tmp_path / "own"
    own.mkdir()
    with ScriptedServer(own, SCRIPT, models=("scripted", "model-1", "model-2", "model-3")):
        (home / "config.toml").write_text((own / "config.toml").read_text())
        (home / "agents").mkdir()
        for number, name in enumerate(("one", "two", "three"), 1):
            head = f"---\nname: {name}\nmodel: model-{number}\ndescription: part {number}\n---\n"
            (home / "agents" / f"{name}.md").write_text(head)
        yield


def test_three_subagents_and_one_is_redirected(crew: None, fulgur: Callable[..., Terminal]) -> None:
    screen = fulgur(columns=100, rows=30)
    screen.wait("›")
    screen.send("/agents", ENTER)
    screen.wait("model-2  part 2")
    screen.send("share it", ENTER)
    screen.wait("✓ one: done, answered by model-1 · ")
    screen.wait("✓ three: done, answered by model-3 · ")
    screen.wait(lambda: "two (model-2)" in screen.text and "w00" in screen.text)  # its row, while it works
    screen.send("/tell two take the other way", ENTER)
    screen.wait("› two: take the other way")
    screen.wait("✓ two: done, answered by model-2 · ")
    screen.wait("│ I went the other way.")
    screen.wait("All three are back.")
    screen.wait(lambda: "two (model-2)" not in screen.text)


VARIANTS_SCRIPT = """
rate = 300
[[reply]]
after = "function_call_output"
steps = [{text = "Done."}]
""" + "".join(
    f'[[reply]]\nmatch = "another value"\ntimes = 1\nsteps = [{{call = "apply_patch", arguments = '
    f'{{patch = "*** Begin Patch\\n*** Update File: app.py\\n@@\\n-x = 1\\n+x = {value}\\n*** End Patch"}}}}]\n'
    for value in ("12", "13", "nowhere", "15", "16")
)


def test_five_variants_and_one_is_taken(
    home: Path, tmp_path: Path, fulgur: Callable[..., Terminal], project: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    with ScriptedServer(own, VARIANTS_SCRIPT):
        (home / "config.toml").write_text((own / "config.toml").read_text())
        screen = fulgur(columns=90, rows=40)
        screen.wait("›")
        screen.send("/variants 5 another value for x", ENTER)
        screen.wait("1–5 takes one")
        assert "· first " not in screen.text  # no model said the words at the end
        text = screen.everything
        assert text.count("· variant ") == 4 and text.count("✗ variant ") == 1
        assert "fails “names exist”" in text and "+x = 13" in text
        assert (project / "app.py").read_text() == "x = 1\n"
        place = text.index("+x = 15")
        number = text.rindex("variant ", 0, place) + len("variant ")
        screen.send(text[number])
        screen.wait(f"Took variant {text[number]}")
        assert (project / "app.py").read_text() == "x = 15\n"
        screen.send("/undo", ENTER)
        screen.wait("undone: app.py")
        assert (project / "app.py").read_text() == "x = 1\n"


TASKS_SCRIPT = """
rate = 300
[[reply]]
match = "a plan for"
steps = [{text = "- [ ] [FAST] write f1\\n- [ ] [FAST] write f2\\n"}]
[[reply]]
after = "function_call_output"
steps = [{text = "Written."}]
""" + "".join(
    f'[[reply]]\nmatch = "write f{number}\\\\b"\nsteps = [{{delay = 0.3}}, {{call = "apply_patch", '
    f'arguments = {{patch = "*** Begin Patch\\n*** Add File: f{number}.txt\\n+{number}\\n*** End Patch"}}}}]\n'
    for number in range(1, 13)
)


@pytest.fixture
def tasks(home: Path, tmp_path: Path) -> Iterator[None]:
    own = tmp_path / "own"
    own.mkdir()
    with ScriptedServer(own, TASKS_SCRIPT, config="features.guards = false"):
        (home / "config.toml").write_text((own / "config.toml").read_text())
        yield


def test_a_plan_is_edited_then_run(tasks: None, fulgur: Callable[..., Terminal], project: Path) -> None:
    screen = fulgur()
    screen.wait("›")
    screen.send("/plan a plan for two files", ENTER)
    screen.wait(lambda: "Edit it, then" in screen.text)
    plan = project / "TASKS.md"
    assert plan.read_text() == "# a plan for two files\n\n- [ ] [FAST] write f1\n- [ ] [FAST] write f2\n"
    plan.write_text(plan.read_text().replace("write f2", "write f3"))
    screen.send("/tasks", ENTER)
    screen.wait("0 of 2 tasks done")
    screen.wait("All 2 tasks of TASKS.md are done.")
    assert (project / "f1.txt").exists() and (project / "f3.txt").exists() and not (project / "f2.txt").exists()
    screen.wait(lambda: "✓  2 [FAST] write f3" in screen.text)
    screen.send("/undo", ENTER)
    screen.wait("undone: ")
    assert not (project / "f1.txt").exists() and "[ ]" in plan.read_text()


def test_a_list_of_twelve_survives_a_kill(tasks: None, fulgur: Callable[..., Terminal], project: Path) -> None:
    plan = project / "TASKS.md"
    plan.write_text("".join(f"- [ ] write f{number}\n" for number in range(1, 13)))
    first = fulgur(rows=30)
    first.wait("›")
    first.send("/tasks", ENTER)
    first.wait(lambda: plan.read_text().count("[x]") >= 3)
    first.program.kill(9)
    first.exit_code()
    ticked = plan.read_text().count("[x]")
    # A step writes its file first and its tick last: a kill between them leaves one file without a tick.
    assert ticked <= len(list(project.glob("f*.txt"))) <= ticked + 1 and ticked < 12
    second = fulgur(rows=30)
    second.wait("›")
    second.send("/tasks", ENTER)
    second.wait("All 12 tasks of TASKS.md are done.")
    assert plan.read_text().count("[x]") == len(list(project.glob("f*.txt"))) == 12
    # A kill between a step's last write and its end takes the whole step back: then that task is done anew.
    assert second.everything.count(": done, answered by scripted") in (12 - ticked, 13 - ticked)


def test_variants_stand_side_by_side_where_there_is_room() -> None:
    made = [
        VariantInfo(
            number=n,
            passes=n < 3,
            proven=n < 2,
            reasons=("parses",),
            diff=f"--- a/x\n+++ b/x\n@@ -1 +1 @@\n--- a\n+b{n}\n",
        )
        for n in (1, 2, 3)
    ]
    plain = [re.sub(r"\x1b\[[\d;]*m", "", row) for row in variant_rows(made, 100)]
    assert plain[0].split() == ["✓", "variant", "1:", "parses", "·", "variant", "2:", "parses"]
    assert [row.split() for row in plain[2:5]] == [["x", "x"], ["---", "a", "---", "a"], ["+b1", "+b2"]]
    assert "✗ variant 3: parses" in plain and max(map(len, plain)) <= 100
    assert all("variant 2" not in row for row in variant_rows(made, 80)[:1])


def test_a_variant_that_repeats_another_shows_no_second_diff() -> None:
    diff = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
    made = [VariantInfo(number=n, passes=True, reasons=("parses",), diff=diff, seconds=1) for n in (1, 2)]
    plain = [re.sub(r"\x1b\[[\d;]*m", "", row) for row in variant_rows(made, 80)]
    numbers = "  1.0 s, 0 tokens"
    assert plain == ["· variant 1: parses", numbers, "  x", "  -a", "  +b", "", "· variant 2: parses", numbers]
