"""Logits against transformers: every family, rope scaling, head and stored type, on random weights."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_models import Dequantised, TrainedLike, row_error

from fulgur.kernels import reference
from fulgur.kernels.cpu import native
from fulgur.kernels.reference import FloatModel, Runtime, quantise_activations
from fulgur.model.config import DeltaShape, ModelConfig, RopeScaling
from fulgur.model.folder import FolderSource
from fulgur.model.pack import Packed, unpack
from fulgur.model.quantise import dequantise
from fulgur.model.random import RandomSource, random_model, tiny_config, write_hf_folder
from fulgur.model.tensors import tensor_shapes
from fulgur.model.weights import Weights, assemble

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LLAMA3 = RopeScaling("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=32)
YARN = RopeScaling("yarn", factor=4.0, original_context=32)
YARN_MSCALE = RopeScaling(
    "yarn", factor=4.0, original_context=32, mscale=1.0, mscale_all_dim=0.5, beta_fast=16.0, truncate=False
)
YARN_ONE = RopeScaling("yarn", factor=4.0, original_context=32, mscale=1.0, mscale_all_dim=1.0)
YARN_OSS = RopeScaling("yarn", factor=32.0, original_context=32, truncate=False)
CASES = {
    "llama": tiny_config("llama"),
    "llama-tied": tiny_config("llama", tied=True, n_kv_heads=4),
    "llama-linear": tiny_config("llama", rope_scaling=RopeScaling("linear", factor=2.0, original_context=512)),
    "llama-llama3": tiny_config("llama", rope_scaling=LLAMA3, rope_theta=500000.0),
    "llama-yarn": tiny_config("llama", rope_scaling=YARN),
    "llama-yarn-mscale": tiny_config("llama", rope_scaling=YARN_MSCALE),
    "qwen2": tiny_config("qwen2"),
    "qwen2-tied": tiny_config("qwen2", tied=True, rope_theta=1e6),
    "qwen2-yarn": tiny_config("qwen2", rope_scaling=YARN),
    "qwen3": tiny_config("qwen3"),
    "qwen3-wide-heads": tiny_config("qwen3", tied=True, head_dim=32, n_kv_heads=1),
    "qwen3-yarn": tiny_config("qwen3", rope_scaling=YARN),
    "fulgur": tiny_config("fulgur"),
    "qwen3_moe": tiny_config("qwen3_moe"),
    "qwen3_moe-normed-yarn": tiny_config("qwen3_moe", norm_topk=True, rope_scaling=YARN),
    "mistral": tiny_config("mistral"),
    "mistral-full": tiny_config("mistral", window=0, layer_kinds=(), head_dim=32),
    "ministral3": tiny_config("ministral3", rope_scaling=YARN_ONE, window=0, layer_kinds=()),
    "gpt_oss": tiny_config("gpt_oss", rope_scaling=YARN_OSS, rope_theta=150000.0),
    "qwen3_next": tiny_config("qwen3_next"),
    "qwen3_next-yarn": tiny_config("qwen3_next", rope_scaling=YARN),
    "qwen3_5": tiny_config("qwen3_5", n_layers=5, delta=DeltaShape(2, 6, 16, 32, 4)),
    "qwen3_5_moe": tiny_config("qwen3_5_moe", delta=DeltaShape(3, 3, 32, 32, 4)),
    "qwen3_5-yarn": tiny_config("qwen3_5", rope_scaling=YARN),
    "qwen3_5_moe-yarn": tiny_config("qwen3_5_moe", rope_scaling=YARN),
}
FAR = np.random.default_rng(8).integers(0, 301, 340)  # 300 beyond every window and original context
TOKENS = np.random.default_rng(7).integers(0, 301, 100)


def transformers_logits(folder: Path, tokens: np.ndarray = TOKENS) -> np.ndarray:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.from_numpy(tokens)[None]).logits[0].numpy()


def write(folder: Path, config: ModelConfig, **options: object) -> None:
    write_hf_folder(folder, config, random_model(config, 3), **options)  # type: ignore[arg-type]


def as_qwen3(folder: Path) -> None:
    """transformers does not know our own family; its mathematics is Qwen3's."""
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    if raw["model_type"] == "fulgur":
        path.write_text(json.dumps({**raw, "model_type": "qwen3"}))


@pytest.mark.parametrize("case", CASES)
def test_logits_match_transformers(case: str, tmp_path: Path) -> None:
    config = CASES[case]
    tokens = FAR if config.rope_scaling or config.window else TOKENS
    write(tmp_path, config)
    ours = FloatModel(FolderSource(tmp_path)).logits(tokens)
    as_qwen3(tmp_path)
    theirs = transformers_logits(tmp_path, tokens)
    assert theirs.std() > 0.5  # the comparison means something
    np.testing.assert_allclose(ours, theirs, atol=5e-5, rtol=0)


@pytest.mark.parametrize("family", [name for name in CASES if "-" not in name])
def test_quantised_logits(family: str) -> None:
    """What rounding costs a network that does not amplify it. `FloatModel` stands for transformers here."""
    config = replace(CASES[family], tied=False)
    source = TrainedLike(config, 3)
    exact = FloatModel(source).logits(TOKENS)
    for bits, bound in ((8, 0.015), (4, 0.18)):
        weights = assemble(source, bits=bits)
        logits = quantised_logits(weights)
        assert row_error(logits, exact) < bound
        # The same weights in float: 8-bit activations, bf16 keys and values are left as error.
        assert row_error(logits, FloatModel(Dequantised(weights, source)).logits(TOKENS)) < 0.012


@pytest.mark.parametrize("case", ["llama-llama3", "mistral", "ministral3", "gpt_oss", "qwen3_5-yarn"])
def test_far_tokens_on_the_cpu(case: str) -> None:
    """The C++ kernels, whose steps are narrower, beyond the window and the original context."""
    config = replace(CASES[case], max_context=384)
    source = TrainedLike(config, 3)
    weights = assemble(source, bits=8)
    runtime = native.Runtime(weights, kv_blocks=6, threads=1)
    table, logits = np.arange(6, dtype=np.int32)[None], np.empty((len(FAR), config.vocab_size), np.float32)
    for start in (0, 150, 300):
        rows = np.arange(start, min(start + 150, len(FAR)), dtype=np.int32)
        part = logits[rows[0] : rows[-1] + 1]
        runtime.step(FAR[rows].astype(np.int32), rows, np.zeros_like(rows), table, rows - start, part)
    runtime.close()
    expected = FloatModel(Dequantised(weights, source)).logits(FAR)
    assert row_error(logits[-100:], expected[-100:]) < 0.012


def quantised_logits(weights: Weights) -> np.ndarray:
    logits = np.empty((len(TOKENS), weights.config.vocab_size), np.float32)
    rows = range(len(TOKENS))
    Runtime(weights, kv_blocks=2).step(TOKENS, rows, np.zeros(len(TOKENS)), [[1, 0]], rows, logits)
    return logits


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe"])
def test_the_error_of_a_random_hybrid_is_that_of_rounding(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain random hybrids are more than 10% off in 8 bits. The same roundings with every product in fp64 give the same
    logits: the layers amplify the noise of their inputs, the arithmetic adds none."""
    source = RandomSource(CASES[family], 3)
    weights = assemble(source, bits=8)
    ours = quantised_logits(weights)
    exact = FloatModel(source).logits(TOKENS)
    monkeypatch.setattr(reference._Matrix, "open", staticmethod(in_fp64))
    emulated = quantised_logits(weights)
    assert row_error(ours, exact) == pytest.approx(row_error(emulated, exact), rel=0.05)
    assert row_error(ours, emulated) < 0.1 * row_error(ours, exact)  # a value between two integers may go either way


def in_fp64(packed: Packed) -> reference.Product:
    matrix = dequantise(unpack(packed)).astype(np.float64)

    def product(x: np.ndarray) -> np.ndarray:
        q, scale = quantise_activations(x, packed.group)
        return ((q.astype(np.float64) * scale[:, :, None]).reshape(x.shape) @ matrix.T).astype(np.float32)

    return product


@pytest.mark.parametrize("case", ["llama-llama3", "llama-yarn-mscale", "qwen2-tied", "qwen3"])
def test_a_folder_written_by_transformers_is_read_the_same(case: str, tmp_path: Path) -> None:
    config, ours, theirs = CASES[case], tmp_path / "ours", tmp_path / "theirs"
    write(ours, config)
    model = transformers.AutoModelForCausalLM.from_pretrained(ours, dtype=torch.float32)
    model.save_pretrained(theirs, max_shard_size="100KB")
    assert (theirs / "model.safetensors.index.json").exists()
    source = FolderSource(theirs)
    expected = random_model(config, 3)
    assert {**source.config.__dict__, "eos_ids": (), "bos_id": None} == config.__dict__
    for name, shape in tensor_shapes(config).items():
        value = source.vector(name) if len(shape) == 1 else source.rows(name, np.arange(shape[0]))
        np.testing.assert_array_equal(value, expected[name])


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_folders(dtype: str, tmp_path: Path) -> None:
    config = CASES["qwen2"]
    write(tmp_path, config, dtype=dtype, shards=3)
    ours = FloatModel(FolderSource(tmp_path)).logits(TOKENS)
    np.testing.assert_allclose(ours, transformers_logits(tmp_path), atol=5e-5, rtol=0)
