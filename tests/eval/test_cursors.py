"""Completions at cursors and HumanEval's lines: what is counted, with answerers that know the answer or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fulgur.eval.baselines import Lookup
from fulgur.eval.cursors import KINDS, SHIPPED, TYPED, Suggest, Suggestion, by_baseline, score_cursors
from fulgur.eval.humaneval import passes, read_problems, score_humaneval, single_lines
from fulgur.eval.score import Scores
from fulgur.eval.tasks import Hole, Tasks, read_tasks, write_tasks


def saying(text: str | None, shown: str | None = None) -> Suggest:
    """Says this and shows it, or another text; None: the right one."""

    def suggest(holes: Sequence[Hole]) -> list[Suggestion]:
        said = [hole.middle if text is None else text for hole in holes]
        return [Suggestion(one, one if shown is None else shown) for one in said]

    return suggest


def scored(cursors: dict[str, list[Hole]], suggest: Suggest) -> Scores:
    scores = Scores()
    score_cursors(scores, cursors, suggest)
    return scores


LINE = Hole("a.py", "def f():\n", "\n", "    return 1")


def test_a_typed_line_counts_what_is_shown_after_each_character() -> None:
    right = scored({TYPED: [LINE]}, saying(None))
    assert right.numbers["complete.wrong_per_line"] == 0 and right.shares["complete.saved"].value == 100
    wrong = scored({TYPED: [LINE]}, saying("x"))
    assert wrong.numbers["complete.wrong_per_line"] == len("return 1") and wrong.shares["complete.saved"].value == 0
    unsure = scored({TYPED: [LINE]}, saying("x", ""))
    assert unsure.numbers["complete.wrong_per_line"] == 0 and unsure.shares["complete.saved"].total == len("return 1")


def test_a_right_beginning_is_taken_and_the_rest_is_looked_at_again() -> None:
    def word_by_word(holes: Sequence[Hole]) -> list[Suggestion]:
        shown = {"turn 1": "turn", "1": "1", "n 1": "x"}  # nobody looks inside what was taken
        return [Suggestion(hole.middle, shown.get(hole.middle, "")) for hole in holes]

    found = scored({TYPED: [LINE]}, word_by_word)
    assert (found.shares["complete.saved"].hits, found.shares["complete.saved"].total) == (5, len("return 1"))
    assert found.numbers == {"complete.wrong_per_line": 0, "complete.taken_per_line": 2}


def test_a_begun_word_is_looked_up_where_the_same_words_stood() -> None:
    suggest = by_baseline(Lookup())
    hole = Hole("a.py", "total = price * count\nprint(total)\ntotal = pri", "\n", "ce * count")
    assert suggest([hole])[0].text == hole.middle
    assert scored({"inside_word": [hole]}, suggest).shares["complete.inside_word"].hits == 1


def test_the_shipped_cursors_are_whole_and_name_their_licences() -> None:
    tasks = read_tasks(SHIPPED)
    assert set(tasks.cursors) == {*KINDS, TYPED} and tasks.size >= 1200
    assert all(package["licence"] and package["text"] for package in tasks.packages)
    assert all(hole.middle[0] in " \t" and hole.prefix.endswith("\n") for hole in tasks.cursors["line_start"])
    assert all(f"x{hole.prefix[-1]}{hole.middle[0]}".isidentifier() for hole in tasks.cursors["inside_word"][:50])


def test_cursors_survive_their_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.xz"
    write_tasks(Tasks(cursors={TYPED: [LINE]}), path)
    assert read_tasks(path).cursors == {TYPED: [LINE]}


def test_lines_of_solutions_pass_and_others_do_not() -> None:
    lines = single_lines(read_problems())[:6]
    scores = Scores()
    score_humaneval(scores, lines, saying(None))
    assert [scores.shares[f"humaneval.single.pass1.{c}"].value for c in ("indented", "column0")] == [100, 100]
    wrong = Scores()
    score_humaneval(wrong, lines, saying("    raise ValueError"))
    assert wrong.shares["humaneval.single.pass1.column0"].hits == 0


def test_a_program_that_hangs_or_dies_fails_alone() -> None:
    assert passes(["while True: pass", "x = 1", "import os; os.abort()", "assert False", "pass"]) == [
        False, True, False, False, True,
    ]  # fmt: skip
