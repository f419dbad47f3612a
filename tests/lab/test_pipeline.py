"""The whole way at toy size: pretrain, anneal, distil, export, and the exported model in the reference runtime."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_run import OPTIONS, losses

from fulgur.errors import FulgurError
from fulgur.kernels.reference import FloatModel, Runtime
from fulgur.model.weights import load, open_source
from fulgur.text.tokenizer import Tokenizer
from lab.train import anneal, checkpoint, distil, export, plot, pretrain, quantise, versus
from lab.train.model import Model
from lab.train.shapes import shape
from lab.train.tokenizer import CodeTokenizer


@pytest.fixture(scope="module")
def trained(toy: Path) -> Path:
    run = toy
    pretrain.main(["--run", str(run), "--shape", "toy", "--steps", "30", "--warmup", "5", *OPTIONS])
    anneal.main(["--run", str(run), "--shape", "toy", "--steps", "12", "--wait", "5", *OPTIONS])
    distil.main(["--run", str(run), "--shape", "toy-small", "--teacher-shape", "toy", "--steps", "12", *OPTIONS])
    for stage in ("anneal", "distil"):
        quantise.main(["--run", str(run), "--stage", stage, "--device", "cpu"])
        for precision in ("quantised", "bf16"):
            export.main(
                ["pieces", "--run", str(run), "--stage", stage, "--out", str(run / "out"), "--precision", precision]
            )
    return run


def model_of(run: Path, stage: str, strength: float) -> Model:
    name, weights = checkpoint.load_weights(run / stage)
    model = Model(shape(name))
    model.load_state_dict(weights)
    model.strength.fill_(strength)
    return model


def runtime_logits(folder: Path, tokens: list[int]) -> np.ndarray:
    weights = load(folder)
    runtime = Runtime(weights, kv_blocks=4)
    n = len(tokens)
    out = np.empty((n, weights.config.vocab_size), np.float32)
    rows = np.arange(n, dtype=np.int32)
    table = np.array([[0, 1, 2, 3]], np.int32)
    runtime.step(np.array(tokens, np.int32), rows, np.zeros(n, np.int32), table, rows, out)
    return out


def test_pretraining_learns(trained: Path) -> None:
    seen = losses(trained, "pretrain")
    assert seen[1] > 6.0  # a fresh model guesses among 512 tokens: log(512) = 6.2
    assert np.mean([seen[s] for s in range(26, 31)]) < seen[1] - 0.8


@pytest.mark.parametrize(
    ("stage", "label", "bits"), [("anneal", "toy", 4), ("anneal", "toy", 8), ("distil", "toy-small", 4)]
)
def test_packed_model_computes_what_was_trained(
    trained: Path, tmp_path: Path, stage: str, label: str, bits: int
) -> None:
    arguments = ["pack", str(trained / "out"), "--label", f"{label}-quantised", "--out", str(tmp_path / "packed")]
    export.main([*arguments, "--tokenizer", str(trained / "tokenizer.json"), "--head-bits", str(bits)])
    assert (tmp_path / "packed" / "tokenizer.json").exists()
    model = model_of(trained, stage, 1.0)
    model.head_bits = bits
    tokens = np.load(next((trained / "rows").glob("heldout-code-0-*.tokens.npy")))[0, :96].tolist()
    with torch.no_grad():
        wanted = model.logits(torch.tensor([tokens]))[0].numpy()
    got = runtime_logits(tmp_path / "packed", tokens)
    # The engine also rounds activations to int8 and the cache to bf16: that, and no more, may differ.
    assert np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 0.02
    assert np.mean(got.argmax(1) == wanted.argmax(1)) > 0.9


def test_models_side_by_side_share_a_tokenizer(trained: Path, tmp_path: Path) -> None:
    shutil.copy(trained / "tokenizer.json", tmp_path / "tokenizer.json")
    arguments = ["pack", str(trained / "out"), "--label", "toy-small-quantised", "--out", str(tmp_path / "packed")]
    export.main([*arguments, "--tokenizer", str(tmp_path / "tokenizer.json"), "--head-bits", "4"])
    assert not (tmp_path / "packed" / "tokenizer.json").exists()
    text = "def f(x):\n    return x\n"
    tokens = Tokenizer.from_folder(tmp_path / "packed").encode(text, special=False)
    assert tokens == CodeTokenizer(trained / "tokenizer.json").encode(text)


def test_a_small_model_goes_on_from_an_earlier_one(trained: Path, tmp_path: Path) -> None:
    arguments = ["pack", str(trained / "out"), "--label", "toy-small-quantised", "--out", str(tmp_path / "packed")]
    export.main([*arguments, "--tokenizer", str(trained / "tokenizer.json"), "--head-bits", "4"])
    for name in ("rows", "anneal"):
        (tmp_path / name).symlink_to(trained / name)
    common = ["--run", str(tmp_path), "--shape", "toy-small", "--teacher-shape", "toy", "--steps", "2", *OPTIONS]
    distil.main([*common, "--init", str(tmp_path / "packed"), "--warmup", "1000000"])
    before, after = (model_of(run, "distil", 1.0).state_dict() for run in (trained, tmp_path))
    assert all(torch.allclose(after[name], before[name], atol=0.02) for name in before)


def test_float_pieces_are_the_model(trained: Path, tmp_path: Path) -> None:
    export.main(["float", str(trained / "out"), "--label", "toy-bf16", "--out", str(tmp_path)])
    tokens = list(range(24, 80))
    with torch.no_grad():
        wanted = model_of(trained, "anneal", 0.0).logits(torch.tensor([tokens]))[0].numpy()
    got = FloatModel(open_source(tmp_path)).logits(tokens)
    assert np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 0.01


def test_a_lost_or_damaged_piece_is_noticed(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "out", tmp_path / "out")
    piece = tmp_path / "out" / "toy-quantised.00"
    data = piece.read_bytes()
    piece.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(FulgurError, match="do not give the file"):
        export.join_pieces(tmp_path / "out", "toy-quantised", tmp_path / "joined")
    with pytest.raises(FulgurError, match="no such model"):
        export.join_pieces(tmp_path / "out", "other", tmp_path / "joined")
    piece.unlink()
    with pytest.raises(FulgurError, match="missing"):
        export.join_pieces(tmp_path / "out", "toy-quantised", tmp_path / "joined")


def test_quantisation_report_and_choice(trained: Path) -> None:
    report = json.loads((trained / "anneal" / "quantise.json").read_text())
    table = report["loss"]
    assert report["head_bits"] == quantise.chosen_head_bits(table)
    assert abs(table["int4, head int8"]["code"] - table["float"]["code"]) < 0.3
    worse = {**table, "int4, head int4": {kind: value + 1 for kind, value in table["int4, head int8"].items()}}
    assert quantise.chosen_head_bits(worse) == 8


def test_the_model_before_is_compared_with_the_one_after(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(FulgurError, match="did not start from an earlier model"):
        versus.main(["--run", str(tmp_path)])
    arguments = ["pack", str(trained / "out"), "--label", "toy-quantised", "--out", str(tmp_path / "init")]
    export.main([*arguments, "--tokenizer", str(trained / "tokenizer.json"), "--head-bits", "4"])
    for name in ("rows", "anneal"):
        (tmp_path / name).symlink_to(trained / name)
    versus.main(["--run", str(tmp_path), "--device", "cpu", "--out", str(tmp_path / "versus.json")])
    table = json.loads((tmp_path / "versus.json").read_text())
    assert list(table) == ["code", "fim", "edits"] and "answers" not in table["code"]
    for row in table.values():  # the weights are the same ones, rounded
        assert abs(row["loss_after"] - row["loss_before"]) < 0.01
    assert table["fim"]["answers"] > 20 and table["fim"]["lost"] + table["fim"]["gained"] < 5


def test_answers_are_runs_of_heavy_tokens() -> None:
    weights = np.array([0, 0.5, 3, 3, 0, 3, 1, 3, 3], np.float32)
    assert versus.answers(weights, 3.0) == [(2, 4), (5, 6), (7, 9)]


def test_plot_shows_every_stage(trained: Path, tmp_path: Path) -> None:
    plot.main(["--run", str(trained), "--out", str(tmp_path / "losses.svg")])
    svg = (tmp_path / "losses.svg").read_text()
    assert all(f">{stage}</text>" in svg for stage in plot.STAGES) and svg.count("<polyline") == 12


def test_resuming_gives_the_same_losses(toy: Path, tmp_path: Path) -> None:
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows").symlink_to(toy / "rows")
    common = ["--shape", "toy-small", "--steps", "6", "--warmup", "2", *OPTIONS]
    pretrain.main(["--run", str(tmp_path / "whole"), *common])
    pretrain.main(["--run", str(tmp_path / "cut"), *common, "--stop-after", "3"])
    pretrain.main(["--run", str(tmp_path / "cut"), *common])
    assert losses(tmp_path / "cut", "pretrain") == pytest.approx(losses(tmp_path / "whole", "pretrain"), abs=1e-4)


def test_a_stage_waits_for_the_one_before(toy: Path, tmp_path: Path) -> None:
    """Started first, annealing compiles and waits; with a moment to end at, both end there."""
    (tmp_path / "rows").symlink_to(toy / "rows")
    common = ["--run", str(tmp_path), "--shape", "toy-small", *OPTIONS, "--wait", "400"]
    end = time.time() + 25
    waiting = subprocess.Popen([sys.executable, "-m", "lab.train.anneal", *common, "--until", str(end)])
    pretrain.main([*common, "--until", str(end - 12)])
    assert waiting.wait(timeout=400) == 0
    assert (tmp_path / "anneal" / "done").exists()
    assert checkpoint.load_weights(tmp_path / "anneal")[0] == "toy-small"
    rates = [json.loads(line).get("rate") for line in (tmp_path / "anneal" / "losses.jsonl").read_text().splitlines()]
    assert not any(rates) or min(rate for rate in rates if rate) < 1.0


def test_what_a_stage_starts_from_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(FulgurError, match="no checkpoint to anneal"):
        anneal.main(["--run", str(tmp_path), "--shape", "toy-small", "--steps", "1", *OPTIONS])
    with pytest.raises(FulgurError, match="one of --minutes, --until and --steps"):
        anneal.main(["--run", str(tmp_path), "--shape", "toy-small", "--steps", "1", "--minutes", "1", *OPTIONS])


def test_training_runs_on_a_bare_machine() -> None:
    """Only numpy, safetensors, tokenizers and torch are there, and lab/train imports nothing else."""
    code = (
        "import importlib, pathlib, sys\n"
        "from importlib.abc import MetaPathFinder\n"
        "known = {'numpy', 'safetensors', 'tokenizers', 'torch', 'lab', 'fulgur', *sys.stdlib_module_names}\n"
        "class Bare(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        caller = sys._getframe(1)\n"
        "        while 'importlib' in caller.f_code.co_filename: caller = caller.f_back\n"
        "        ours = caller.f_globals.get('__name__', '').split('.')[0] in ('lab', 'fulgur')\n"
        "        if ours and name.split('.')[0] not in known: raise ImportError(f'{name} is not there')\n"
        "sys.meta_path.insert(0, Bare())\n"
        "for file in sorted(pathlib.Path('lab/train').rglob('*.py')):\n"
        "    if file.stem not in ('__main__', '__init__', 'compare'):\n"
        "        importlib.import_module('.'.join(file.with_suffix('').parts))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=Path(__file__).parents[2])
