"""The bench of models of experts, on small shapes: the weights it writes run, and every row is there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fulgur.bench import large
from fulgur.bench.large import Files, distinct, measure, read_per_token
from fulgur.bench.random_folder import random_bytes, write_random
from fulgur.bench.report import Report
from fulgur.bench.shapes import LARGE
from fulgur.errors import FulgurError
from fulgur.kernels.cpu.native import Runtime
from fulgur.model.config import DeltaShape, ModelConfig
from fulgur.model.random import tiny_config
from fulgur.model.weights import load

SMALL = {
    "qwen3_moe": tiny_config("qwen3_moe", d_expert=64, max_context=1024),
    "qwen3_5_moe": tiny_config("qwen3_5_moe", d_expert=64, max_context=1024, delta=DeltaShape(2, 4, 32, 32, 4)),
    "gpt_oss": tiny_config("gpt_oss", d_expert=64, max_context=1024),
}


def begin(what: str, skipped: int = 0) -> None:
    """No progress is shown."""


@pytest.mark.parametrize("family", SMALL)
def test_random_weights_run(family: str, tmp_path: Path) -> None:
    config = SMALL[family]
    size = write_random(config, tmp_path, 4)
    assert 0 <= (tmp_path / "weights.safetensors").stat().st_size - size < 20_000  # the header
    weights = load(tmp_path)
    assert weights.nbytes == size
    runtime = Runtime(weights, kv_blocks=2, threads=1)
    rows = np.arange(100, dtype=np.int32)
    logits = np.zeros((100, config.vocab_size), np.float32)
    runtime.step(rows % config.vocab_size, rows, np.zeros(100, np.int32), np.array([[0, 1]], np.int32), rows, logits)
    assert np.isfinite(logits).all() and 0.01 < logits.std() < 100


def test_every_row_is_measured(tmp_path: Path) -> None:
    report = Report("test")
    files = Files(tmp_path, keep=False)
    measure("tiny", SMALL["qwen3_5_moe"], 4, files, begin, report, repeat=1, turns=1, peer=False)
    rows = {row.name.removesuffix(".tiny.int4"): row.value for row in report.rows}
    assert {"engine.start_s", "engine.decode.tok_s", "engine.bandwidth_share", "engine.verify4.ratio"} <= rows.keys()
    assert rows["engine.first.decode.tok_s"] > 0 and rows["engine.first.faults"] > 0
    assert not list(tmp_path.iterdir())


def test_weights_are_kept_for_the_next_run(tmp_path: Path) -> None:
    files, config = Files(tmp_path, keep=True), SMALL["qwen3_moe"]
    times = []
    for _ in range(2):
        measure("tiny", config, 4, files, begin, Report("test"), repeat=1, turns=1, peer=False)
        times.append((tmp_path / "tiny.int4" / "weights.safetensors").stat().st_mtime_ns)
    assert times[0] == times[1]


def test_a_model_larger_than_the_memory_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "memory_gb", lambda: 23.5)
    report = Report("test")
    config = LARGE["30B-A3B"]
    measure("30B-A3B", config, 8, Files(tmp_path, keep=True), begin, report, repeat=1, turns=1, peer=True)
    assert not report.rows and not list(tmp_path.iterdir())
    assert report.notes == ["30B-A3B.int8: not measured, 29.6 GiB of weights do not fit into 23.5 GiB of memory"]


def test_disk_space_for_both_files_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SMALL["qwen3_moe"]
    free = random_bytes(config, 4) * 3 // 2  # enough for ours, not for the peer's as well
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(FulgurError, match="are free") as error:
        measure("tiny", config, 4, Files(tmp_path, keep=True), begin, Report("test"), repeat=1, turns=1, peer=True)
    assert "--no-peer" in (error.value.hint or "") and not list(tmp_path.iterdir())


def gigabytes(config: ModelConfig) -> float:
    """What a token reads in 4 bits, from the shape alone."""
    from fulgur.model.tensors import matrix_plans, plain_plans

    wide = {name: 1.03125 if name == "head" else 0.53125 for name in matrix_plans(config)}
    dense = sum(len(plan.row) * plan.cols * wide[name] for name, plan in matrix_plans(config).items())
    plain = sum(2 * len(plan.row) * plan.cols for plan in plain_plans(config).values())
    experts = config.n_layers * config.experts_per_token * 3 * config.d_expert * config.d_model * 0.53125
    return read_per_token(config, int(dense + plain + experts), 0) / 1e9


def test_shapes_are_those_of_the_models() -> None:
    found = {name: round(config.parameters / 1e9, 1) for name, config in LARGE.items()}
    assert found == {"30B-A3B": 30.5, "35B-A3B": 34.7, "20b": 20.9}
    assert {name: round(gigabytes(config), 1) for name, config in LARGE.items()} == {
        "30B-A3B": 1.8,
        "35B-A3B": 2.0,
        "20b": 2.2,
    }
    assert round(distinct(LARGE["35B-A3B"], 4), 1) == 30.5
