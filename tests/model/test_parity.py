"""Logits against transformers: every family, rope scaling, head and stored type, on random weights."""

import json
from pathlib import Path

import numpy as np
import pytest

from fulgur.kernels.reference import FloatModel, Runtime
from fulgur.model.config import ModelConfig, RopeScaling
from fulgur.model.folder import FolderSource
from fulgur.model.random import random_model, tiny_config, write_hf_folder
from fulgur.model.tensors import tensor_shapes
from fulgur.model.weights import load

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LLAMA3 = RopeScaling("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=32)
YARN = RopeScaling("yarn", factor=4.0, original_context=32)
YARN_MSCALE = RopeScaling(
    "yarn", factor=4.0, original_context=32, mscale=1.0, mscale_all_dim=0.5, beta_fast=16.0, truncate=False
)
CASES = {
    "llama": tiny_config("llama"),
    "llama-tied": tiny_config("llama", tied=True, n_kv_heads=4),
    "llama-linear": tiny_config("llama", rope_scaling=RopeScaling("linear", factor=2.0, original_context=512)),
    "llama-llama3": tiny_config("llama", rope_scaling=LLAMA3, rope_theta=500000.0),
    "llama-yarn": tiny_config("llama", rope_scaling=YARN),
    "llama-yarn-mscale": tiny_config("llama", rope_scaling=YARN_MSCALE),
    "qwen2": tiny_config("qwen2"),
    "qwen2-tied": tiny_config("qwen2", tied=True, rope_theta=1e6),
    "qwen3": tiny_config("qwen3"),
    "qwen3-wide-heads": tiny_config("qwen3", tied=True, head_dim=32, n_kv_heads=1),
    "qwen3-yarn": tiny_config("qwen3", rope_scaling=YARN),
    "fulgur": tiny_config("fulgur"),
}
TOKENS = np.random.default_rng(7).integers(0, 301, 100)


def transformers_logits(folder: Path) -> np.ndarray:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.from_numpy(TOKENS)[None]).logits[0].numpy()


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
    write(tmp_path, config)
    ours = FloatModel.from_source(FolderSource(tmp_path)).logits(TOKENS)
    as_qwen3(tmp_path)
    theirs = transformers_logits(tmp_path)
    assert theirs.std() > 0.5  # the comparison means something
    np.testing.assert_allclose(ours, theirs, atol=5e-5, rtol=0)

    for bits, bound in ((8, 0.06), (4, 0.60)):
        runtime = Runtime(load(tmp_path, bits=bits), kv_blocks=2)
        logits = np.empty_like(theirs)
        runtime.step(TOKENS, range(100), np.zeros(100), [[1, 0]], range(100), logits)
        assert np.sqrt(np.mean((logits - theirs) ** 2)) < bound * theirs.std()


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
    ours = FloatModel.from_source(FolderSource(tmp_path)).logits(TOKENS)
    np.testing.assert_allclose(ours, transformers_logits(tmp_path), atol=5e-5, rtol=0)
