"""What is run on a GPU by hand, tried without one: the families' checks and their benchmark in the emulator, and the
peer's logits against the project's reference."""

from __future__ import annotations

from concurrent.futures import wait
from pathlib import Path

import emulated_family
import emulated_gpu
import gpu_families
import gpu_touch
import numpy as np
import pytest
from held_models import held_on
from test_family import FAMILIES, WITH_A_HEAD, opened
from transformers_logits import family_logits

from fulgur.bench.gpu_families import compile_ahead, measure
from fulgur.bench.report import Report
from fulgur.kernels.cuda.family_plan import Weights, make_family_plan
from fulgur.kernels.cuda.family_runtime import FamilyRuntime
from fulgur.kernels.cuda.family_weights import assemble
from fulgur.kernels.reference import FloatModel
from fulgur.model.config import ModelConfig
from fulgur.model.random import tiny_config

PEERS = {
    **{name: FAMILIES[name][0] for name in ("mistral", "ministral3", "qwen3_5", "qwen3_next")},
    "gpt_oss": tiny_config(  # older versions have the limit in their code
        "gpt_oss", window=6, swiglu_limit=7.0, rope_scaling=gpu_families.YARN, rope_theta=150000.0
    ),
    "qwen3_5_moe": tiny_config("qwen3_5_moe"),
}


@pytest.mark.parametrize("config", PEERS.values(), ids=PEERS)
def test_the_peer_computes_the_same_function(config: ModelConfig) -> None:
    source = held_on("cpu", config, Weights.named("bf16", "mxfp4" if config.family == "gpt_oss" else "fp8"), 3)
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, 12).tolist()
    found, expected = family_logits(source, tokens, "cpu").numpy(), FloatModel(source).logits(tokens)
    assert np.linalg.norm(found - expected) < 1e-4 * np.linalg.norm(expected)


def test_the_checks_of_the_families(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The shorter ones, with a small model; one that fails is told, and the others run."""
    emulated_family.install(monkeypatch, folder)
    monkeypatch.setattr(gpu_families, "CASES", {"tiny": WITH_A_HEAD})
    monkeypatch.setattr(gpu_families, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_families, "LENGTH", 72)
    monkeypatch.setattr(gpu_families, "compile_ahead", lambda *_: [])

    def wrong(case: gpu_families.Case) -> str:
        raise ValueError("so it was found")

    monkeypatch.setitem(gpu_families.CHECKS, "wrong", (wrong, ()))
    wanted = {"tiny": ["wrong", "transformers", "prompt"]}
    found = gpu_families.run(wanted, emulated_gpu.GPU, 1e9)
    assert [name for (name, _), (passed, _) in found.items() if not passed] == ["wrong"], found
    cancelled, near = gpu_families.interleaved(opened(*WITH_A_HEAD)[0], list(range(20)), 4, False)
    assert cancelled <= 4 and near == 0
    said = gpu_families.table(found, wanted)
    assert "FAIL wrong tiny: ValueError: so it was found" in said and len(said.splitlines()) == 3


def test_the_rows_of_the_benchmark(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    emulated_family.install(monkeypatch, folder)
    model, report = opened(*WITH_A_HEAD)[0], Report("")
    monkeypatch.setattr("fulgur.bench.gpu_families.RUNS", 1)
    measure(model, "tiny", 1e12, report, prompt=9, steps=5)
    names = [row.name for row in report.rows]
    assert names == [
        "gpu.ttft_ms.9.tiny", "gpu.decode.tok_s.tiny", "gpu.decode.bandwidth_share.tiny", "gpu.verify4.ratio.tiny",
        "gpu.verify8.ratio.tiny", "gpu.draft.us.tiny", "gpu.decode.tok_s.tiny.mtp", "gpu.decode.tok_s.tiny.mtp66",
    ]  # fmt: skip
    measure(model, "tiny", 1e12, report, parts=["mtp66"], prompt=9, steps=5)
    assert [row.name for row in report.rows[len(names) :]] == ["gpu.decode.tok_s.tiny.mtp66"]
    model.close()


@pytest.mark.parametrize("name", ["gpt_oss", "with a head"])
def test_what_the_sanitizer_sees(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """It reaches its end; guard pages of the emulator say whether memory is touched that is not there."""
    emulated_family.install(monkeypatch, folder)
    monkeypatch.setattr(gpu_touch, "BLOCKS", 4 if name == "with a head" else 8)
    config, weights = WITH_A_HEAD if name == "with a head" else FAMILIES[name]
    held = assemble(make_family_plan(config, weights, ctas=1), held_on("cpu", config, weights, 3), "cpu")
    model = FamilyRuntime(held, kv_blocks=gpu_touch.BLOCKS, slots=2, snapshots=2)
    model.prefill_from = 16
    gpu_touch.touch(model, prompt=20)
    model.close()


def test_kernels_are_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all models at once, each once."""
    compiled: list[tuple[str, tuple[tuple[str, str], ...]]] = []
    monkeypatch.setattr(
        "fulgur.kernels.cuda.build.cubin_of", lambda stem, texts, _: compiled.append((stem, tuple(texts.items())))
    )
    wait(compile_ahead([make_family_plan(*FAMILIES[name]) for name in ("mistral", "qwen3_5")], emulated_gpu.GPU))
    stems = {stem for stem, _ in compiled}
    assert len(compiled) == len(set(compiled)) and {"wide", "prompt", "delta_prefill"} <= stems
