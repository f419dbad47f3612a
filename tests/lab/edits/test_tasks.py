"""Task sets made from files: columns kept apart, the same again for the same seed, read back as they were written."""

from __future__ import annotations

import json
import random
import shutil
import zipfile
from pathlib import Path

import pytest
from samples import SAMPLES

from fulgur.errors import FulgurError
from fulgur.eval.answers import Answers
from fulgur.eval.codemod import Codemod
from fulgur.eval.grade import check
from fulgur.eval.score import score
from fulgur.eval.tasks import Tasks, read_tasks, write_tasks
from fulgur.model.random import random_model, tiny_config, write_hf_folder
from fulgur.text.edit_format import NoEdit, answer_pieces, pieces_text
from fulgur.workspace.folders import TOKENIZER
from lab.train import tasks as making
from lab.train.edits import OPERATIONS, generate_file
from lab.train.gather import licence_text
from lab.train.tasks import File, from_archive, from_folder, make_tasks

FILES = [File("shop", path, text) for path, text in SAMPLES.items()]


def tasks() -> Tasks:
    return make_tasks(FILES, 2, 12, 0)


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


def test_right_answers_score_full() -> None:
    found = tasks()
    edits = [*(e for examples in found.edits.values() for e in examples), *found.noops, *found.next_edits]
    right = [pieces_text(answer_pieces(example.answer)) for example in edits]
    written = [*right, *(hole.middle for hole in [*found.single, *found.multi])]
    full = score(found, Answers.of(found, written)).shares
    for name in ("ops.seen", "ops.heldout_phrasing", "ops.heldout_op", "parse", "fim.single", "fim.multi", "exact"):
        assert full[name].value == 100, name
    assert full["next.content"].value == full["next.location"].value == 100
    assert full["false_edit"].value == full["stray"].value == full["unedited"].value == 0


def test_the_codemod_baseline_does_some_operations() -> None:
    for op in ("modern_super", "remove_docstring", "rename_parameter", "sort_imports"):
        made = [e for seed in range(8) for e in generate_file(FILES[0].text, "a.py", random.Random(seed), only={op})]
        assert any(check(example, Codemod().edit(example)) for example in made), op


def test_a_set_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text(SAMPLES["net/service.py"])
    (tmp_path / "code" / "bad.py").write_bytes(b"\xff\xfe")
    out = tmp_path / "tasks.jsonl.xz"
    sizes = ["--per-op", "1", "--holes", "2", "--seed", "3"]
    assert making.main(["--source", str(tmp_path / "code"), "--out", str(out), *sizes]) == 0
    assert read_tasks(out) == make_tasks(from_folder(tmp_path / "code"), 1, 2, 3)


def test_files_from_an_archive_and_from_nowhere(tmp_path: Path) -> None:
    document = {"package": "p", "version": "1", "licence": "MIT", "path": "p/a.py", "text": SAMPLES["net/service.py"]}
    lines = [json.dumps(document | {"split": split}) for split in ("train", "heldout")]
    (tmp_path / "archive.jsonl").write_text("\n".join(lines) + "\n")
    assert [file.path for file in from_archive(tmp_path / "archive.jsonl")] == ["p/a.py"]
    with pytest.raises(FulgurError, match="no files"):
        make_tasks([], 1, 1, 0)


def test_the_licence_of_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "p-1-py3-none-any.whl"
    metadata = "Name: p\nAuthor: A. Person\nClassifier: License :: OSI Approved :: MIT License\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("p-1.dist-info/METADATA", metadata)
    assert licence_text(wheel) == "Author: A. Person\nClassifier: License :: OSI Approved :: MIT License"
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("p-1.dist-info/licenses/LICENSE.txt", "Copyright A. Person")
    assert licence_text(wheel) == "Copyright A. Person"


def test_float_answers_are_the_plain_greedy_ones(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from lab.train.compare import STOPS, FloatModel

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


def test_a_model_is_compared_with_its_float_weights(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from lab.train import compare

    config = tiny_config("fulgur", vocab_size=8192, max_context=2048, d_ffn=128)
    write_hf_folder(tmp_path, config, random_model(config, 3))
    shutil.copy(TOKENIZER, tmp_path)
    write_tasks(Tasks(single=read_tasks().single[:1]), tmp_path / "tasks.jsonl.xz")
    options = ["--model", tmp_path, "--float", tmp_path, "--tasks", tmp_path / "tasks.jsonl.xz"]
    assert compare.main([*map(str, options), "--json", str(tmp_path / "rows.json")]) == 0
    names = {row["name"] for row in json.loads((tmp_path / "rows.json").read_text())["rows"]}
    label = next(name.rsplit(".", 1)[1] for name in names if name.endswith("-float"))
    assert {f"model.fim.single.{label}", "model.fim.single." + label.removesuffix("-float")} <= names
