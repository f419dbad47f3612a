"""`fulgur eval model`: the shipped tasks, scores that tell right from wrong, baselines, and the command itself."""

from __future__ import annotations

import json
import lzma
import math
import shutil
from pathlib import Path

import pytest

from fulgur.errors import FulgurError
from fulgur.eval.answers import Answers, ask_baseline
from fulgur.eval.baselines import Copy, Lookup, Ngram
from fulgur.eval.score import Share, score, stray_lines
from fulgur.eval.tasks import Hole, Tasks, read_tasks, write_tasks
from fulgur.model.random import random_model, tiny_config, write_hf_folder
from fulgur.text.edit_format import NoEdit
from fulgur.ui.cli import main
from fulgur.workspace.folders import TOKENIZER


@pytest.fixture(scope="module")
def few() -> Tasks:
    """Some of the shipped tasks of each kind."""
    found = read_tasks()
    found.edits = {split: examples[::40] for split, examples in found.edits.items()}
    found.noops, found.next_edits = found.noops[:6], found.next_edits[:4]
    found.single, found.multi = found.single[:6], found.multi[:4]
    return found


def test_the_shipped_tasks_are_whole() -> None:
    found = read_tasks()
    assert {split: len(examples) for split, examples in found.edits.items()} == {
        "seen": 414, "heldout_phrasing": 414, "heldout_op": 144
    }  # fmt: skip
    assert (len(found.noops), len(found.next_edits)) == (300, 75)
    assert (len(found.single), len(found.multi)) == (600, 300)
    assert all(isinstance(example.answer, NoEdit) for example in found.noops)
    assert len(found.packages) == 28 and all(package["text"] for package in found.packages)


def test_copies_score_nothing(few: Tasks) -> None:
    copied = score(few, ask_baseline(Copy(), few)).shares
    assert copied["ops.seen"].value == 0 and copied["unedited"].value == 100
    assert copied["false_edit"].value == 0


def test_false_edits_and_stray_lines_are_counted(few: Tasks) -> None:
    wrong = Answers({}, [e.region + "more = 1\n" for e in few.noops], [], [], [])
    assert score(few, wrong).shares["false_edit"].value == 100
    assert stray_lines("a\nb\nc\n", "a\nB\nc\n", "a\nB\nc\n") == (0, 2)
    assert stray_lines("a\nb\nc\n", "a\nB\nc\n", "x\nB\nc\n") == (1, 2)
    assert stray_lines("a\nb\nc\n", "a\nB\nc\n", "a\nB\n") == (1, 2)


def test_wilson_intervals() -> None:
    share = Share(8, 10)
    low, high = share.interval
    assert share.value == 80 and low == pytest.approx(49.0, abs=0.1) and high == pytest.approx(94.3, abs=0.1)
    assert math.isnan(Share().value) and Share().interval == (0.0, 100.0)


def test_baselines_complete_what_they_have_seen() -> None:
    hole = Hole("a.py", "alpha = load(path)\nbeta = 1\nalpha = ", "\nend\n", "load(path)")
    assert Lookup().fill(hole, False) == "load(path)"
    assert Ngram().fill(hole, False) == "load(path)"
    assert Copy().fill(hole, False) == "beta = 1"


@pytest.mark.parametrize("content", [b"", b"no archive", lzma.compress(b"[]\n"), lzma.compress(b'{"format": 0}\n')])
def test_a_broken_task_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tasks.jsonl.xz"
    with pytest.raises(FulgurError, match="no such set"):
        read_tasks(path)
    path.write_bytes(content)
    with pytest.raises(FulgurError, match="not a set of tasks"):
        read_tasks(path)


def test_the_whole_command_with_a_random_model(few: Tasks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model"
    config = tiny_config("fulgur", vocab_size=8192, max_context=2048)
    write_hf_folder(model, config, random_model(config, 1))
    shutil.copy(TOKENIZER, model)
    tasks, out, answers = tmp_path / "tasks.jsonl.xz", tmp_path / "rows.json", tmp_path / "answers.jsonl"
    write_tasks(few, tasks)
    command = ["eval", "model", "--tasks", str(tasks), "--models", str(model), "--json", str(out)]
    assert main([*command, "--answers", str(answers)]) == 0
    names = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    label = next(name for name in names if name.startswith("model.ops.seen.") and name.endswith("M")).rsplit(".", 1)[1]
    for name in ("ops.seen", "ops.heldout_phrasing", "ops.heldout_op", "false_edit", "fim.single"):
        for answerer in (label, "copy", "lookup", "ngram", "codemod"):
            row = names[f"model.{name}.{answerer}"]
            assert row["low"] <= row["value"] <= row["high"] and row["unit"] == "%"
    assert names["model.ops.seen.copy"]["value"] == 0
    assert len(answers.read_text().splitlines()) == few.size
    assert "operation" in capsys.readouterr().out
    out.write_text(json.dumps({"rows": [{"name": "model.fim.single.copy"}, {"name": "model.ops.seen.copy"}]}))
    assert main([*command, "--only", "edits"]) == 0
    again = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    assert again["model.fim.single.copy"] == {"name": "model.fim.single.copy"}  # the other half stays
    assert again["model.ops.seen.copy"] == names["model.ops.seen.copy"]


def test_wrong_use_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "rows.json"
    broken.write_text("[]")
    for options, said in (
        (["--json", "/no/such/folder/rows.json"], "its folder does not exist"),
        (["--answers", "/no/such/folder/answers.jsonl"], "its folder does not exist"),
        (["--json", str(broken), "--only", "edits"], "not the rows of an evaluation"),
    ):
        assert main(["eval", "model", *options]) == 2
        assert said in capsys.readouterr().err
    assert main(["eval", "model", "--models", "7B"]) == 2
    assert "there is no model 7B" in capsys.readouterr().err
    assert broken.read_text() == "[]"
