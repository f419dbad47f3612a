"""The evaluation: tasks from files, scores that tell right from wrong, baselines, and the float model's own answers."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path

import pytest
from samples import SAMPLES

from fulgur.errors import FulgurError
from fulgur.model.random import random_model, tiny_config, write_hf_folder
from fulgur.text.edit_format import NoEdit, answer_pieces, pieces_text
from fulgur.workspace.folders import TOKENIZER
from lab.train.edits import OPERATIONS, check, generate_file
from lab.train.evaluate import main
from lab.train.evaluate_baselines import Copy, Lookup, Ngram
from lab.train.evaluate_codemod import Codemod
from lab.train.evaluate_score import Answers, Share, score, stray_lines
from lab.train.evaluate_tasks import File, Hole, Tasks, make_tasks, read_files

FILES = [File("shop", path, text) for path, text in SAMPLES.items()]


def tasks() -> Tasks:
    return make_tasks(FILES, 2, 12, 0)


def perfect(found: Tasks) -> Answers:
    def right(examples: list) -> list[str]:  # type: ignore[type-arg]
        return [pieces_text(answer_pieces(example.answer)) for example in examples]

    return Answers(
        {split: right(examples) for split, examples in found.edits.items()},
        right(found.noops),
        right(found.next_edits),
        [hole.middle for hole in found.single],
        [hole.middle for hole in found.multi],
    )


def test_tasks_keep_the_columns_apart() -> None:
    found = tasks()
    assert found.size > 100 and found.single and found.multi and found.noops and found.next_edits
    assert all(not e.heldout_phrasing and not OPERATIONS[e.op].heldout for e in found.edits["seen"])
    assert all(e.heldout_phrasing for e in found.edits["heldout_phrasing"])
    assert all(OPERATIONS[e.op].heldout for e in found.edits["heldout_op"])
    assert all(isinstance(e.answer, NoEdit) for e in found.noops)
    for hole in found.single:
        assert "\n" not in hole.middle and hole.middle.strip()
    assert all(1 <= hole.middle.count("\n") <= 4 for hole in found.multi)
    assert found == tasks(), "the same seed gives the same tasks"


def test_right_answers_score_full_and_copies_score_nothing() -> None:
    found = tasks()
    full = score(found, perfect(found)).shares
    for name in ("ops.seen", "ops.heldout_phrasing", "ops.heldout_op", "parse", "fim.single", "fim.multi", "exact"):
        assert full[name].value == 100, name
    assert full["next.content"].value == full["next.location"].value == 100
    assert full["false_edit"].value == full["stray"].value == full["unedited"].value == 0
    copy = Copy()
    copied = score(
        found, Answers({s: [copy.edit(e) for e in es] for s, es in found.edits.items()}, [], [], [], [])
    ).shares
    assert copied["ops.seen"].value == 0 and copied["unedited"].value == 100


def test_false_edits_and_stray_lines_are_counted() -> None:
    found = tasks()
    wrong = Answers({}, [e.region + "more = 1\n" for e in found.noops], [], [], [])
    assert score(found, wrong).shares["false_edit"].value == 100
    assert stray_lines("a\nb\nc\n", "a\nB\nc\n", "a\nB\nc\n") == (0, 2)
    assert stray_lines("a\nb\nc\n", "a\nB\nc\n", "x\nB\nc\n") == (1, 2)
    assert stray_lines("a\nb\nc\n", "a\nB\nc\n", "a\nB\n") == (1, 2)


def test_wilson_intervals() -> None:
    share = Share(8, 10)
    low, high = share.interval
    assert share.value == 80 and low == pytest.approx(49.0, abs=0.1) and high == pytest.approx(94.3, abs=0.1)
    assert math.isnan(Share().value) and Share().interval == (0.0, 100.0)


def test_baselines_do_what_they_say() -> None:
    hole = Hole("a.py", "alpha = load(path)\nbeta = 1\nalpha = ", "\nend\n", "load(path)")
    assert Lookup().fill(hole, False) == "load(path)"
    assert Ngram().fill(hole, False) == "load(path)"
    assert Copy().fill(hole, False) == "beta = 1"
    for op in ("modern_super", "remove_docstring", "rename_parameter", "sort_imports"):
        made = [e for seed in range(8) for e in generate_file(FILES[0].text, "a.py", random.Random(seed), only={op})]
        assert any(check(example, Codemod().edit(example)) for example in made), op


def test_files_from_a_folder_an_archive_and_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SAMPLES["net/service.py"])
    (tmp_path / "bad.py").write_bytes(b"\xff\xfe")
    assert [Path(file.path).name for file in read_files(None, tmp_path)] == ["a.py"]
    document = {"package": "p", "version": "1", "licence": "MIT", "path": "p/a.py", "text": SAMPLES["net/service.py"]}
    lines = [json.dumps(document | {"split": split}) for split in ("train", "heldout")]
    (tmp_path / "archive.jsonl").write_text("\n".join(lines) + "\n")
    assert len(read_files(tmp_path / "archive.jsonl", None)) == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(FulgurError, match="no held-out files"):
        read_files(None, tmp_path / "empty")


def test_the_whole_command_with_a_random_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model"
    config = tiny_config("fulgur", vocab_size=8192, max_context=2048)
    write_hf_folder(model, config, random_model(config, 1))
    shutil.copy(TOKENIZER, model)
    code = tmp_path / "code"
    code.mkdir()
    (code / "a.py").write_text(SAMPLES["net/service.py"])
    out = tmp_path / "rows.json"
    options = ["--source", str(code), "--models", str(model), "--per-op", "1", "--holes", "2", "--json", str(out)]
    assert main(options) == 0
    names = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    label = next(name for name in names if name.startswith("model.ops.seen.") and name.endswith("M")).rsplit(".", 1)[1]
    for name in ("ops.seen", "ops.heldout_phrasing", "ops.heldout_op", "stray", "false_edit", "parse", "fim.single"):
        for answerer in (label, "copy", "lookup", "ngram", "codemod"):
            row = names.get(f"model.{name}.{answerer}")
            if row is not None:
                assert row["low"] <= row["value"] <= row["high"] and row["unit"] == "%"
    assert names["model.ops.seen.copy"]["value"] == 0
    assert "operation" in capsys.readouterr().out
    out.write_text(json.dumps({"rows": [{"name": "model.fim.single.copy"}, {"name": "model.ops.seen.copy"}]}))
    assert main([*options, "--only", "edits"]) == 0
    again = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    assert again["model.fim.single.copy"] == {"name": "model.fim.single.copy"}  # the other half stays
    assert again["model.ops.seen.copy"] == names["model.ops.seen.copy"]


def test_float_answers_are_the_plain_greedy_ones(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from lab.train.evaluate_float import STOPS, FloatModel

    config = tiny_config("fulgur", vocab_size=512, max_context=128, d_ffn=128)
    write_hf_folder(tmp_path, config, random_model(config, 3))
    model = FloatModel(tmp_path)
    prompt = [30, 40, 50, 60]
    plain: list[int] = []
    with torch.no_grad():
        while len(plain) < 20 and (not plain or plain[-1] not in STOPS):
            plain.append(int(model.model.logits(torch.tensor([prompt + plain]))[0, -1].argmax()))
    rng = random.Random(0)
    for _ in range(6):
        draft = [token if rng.random() < 0.7 else rng.randrange(24, 512) for token in plain]
        assert model.answer(prompt, draft, 20) == plain
    assert model.answer(prompt, [], 20) == plain
