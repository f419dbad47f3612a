"""The peer's file of a model of experts holds the numbers of ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fulgur.bench.packed_gguf import write_packed_gguf
from fulgur.bench.peer import Peer, Settings
from fulgur.bench.random_folder import write_random
from fulgur.bench.shapes import LARGE
from fulgur.kernels.cpu.native import Runtime
from fulgur.model.bfloat16 import from_bfloat16
from fulgur.model.config import DeltaShape
from fulgur.model.gguf import GgufSource
from fulgur.model.pack import Packed, unpack
from fulgur.model.random import tiny_config
from fulgur.model.tensors import (
    EMBED,
    expert_plan,
    kernel_vector,
    layer_names,
    matrix_plans,
    plain_plans,
    vector_plans,
)
from fulgur.model.weights import gather, load

pytest.importorskip("gguf")
SEED = 3
SMALL = {
    "qwen3_moe": tiny_config("qwen3_moe", d_expert=64, max_context=1024, norm_topk=True),
    "qwen3_5_moe": tiny_config("qwen3_5_moe", d_expert=64, max_context=1024, delta=DeltaShape(2, 4, 32, 32, 4)),
    "gpt_oss": tiny_config("gpt_oss", d_expert=64, max_context=1024),
}


@pytest.mark.parametrize("family", SMALL)
def test_the_same_numbers(family: str, tmp_path: Path) -> None:
    config = replace(SMALL[family], tied=False)
    write_random(config, tmp_path / "packed", 4, SEED)
    write_packed_gguf(tmp_path / "packed", tmp_path / "peer.gguf", SEED)
    ours, theirs = load(tmp_path / "packed"), GgufSource(tmp_path / "peer.gguf")
    np.testing.assert_array_equal(ours.embed, theirs.rows(EMBED, np.arange(config.vocab_size)))
    for name, parts in vector_plans(config).items():
        value = kernel_vector(config, name, np.concatenate([theirs.vector(part) for part in parts]))
        np.testing.assert_allclose(ours.vectors[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    for name, plan in plain_plans(config).items():
        np.testing.assert_array_equal(from_bfloat16(ours.plain[name]), gather(theirs, plan), err_msg=name)
    for name, plan in matrix_plans(config).items():
        np.testing.assert_array_equal(floats(ours.matrices[name]), gather(theirs, plan), err_msg=name)
    for to, layer, _ in layer_names(config):
        for name, expert in ((name, expert) for name in ("gate_up", "down") for expert in (0, config.n_experts - 1)):
            packed = ours.experts[f"{to}experts.{name}"].expert(expert)
            other = gather(theirs, expert_plan(config, layer, expert, name))
            np.testing.assert_array_equal(floats(packed), other, err_msg=f"{layer}{name}")


@pytest.mark.parametrize("model", LARGE)
def test_llama_cpp_computes_the_same(model: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    large, count = LARGE[model], 40
    config = replace(large, n_layers=4, layer_kinds=large.layer_kinds[:4], vocab_size=512, n_experts=8, d_expert=256)
    config = replace(config, d_model=512, d_shared=min(config.d_shared, 256))
    write_random(config, tmp_path, 4, SEED)
    write_packed_gguf(tmp_path, tmp_path / "peer.gguf", SEED)
    peer = Peer(str(tmp_path / "peer.gguf"), 256, Settings(1, flash=False, repack=False))
    peer._run(0, count, count)
    rows = np.arange(count, dtype=np.int32)
    logits = (peer.lib.llama_get_logits_ith(peer.context, i) for i in range(count))
    theirs = np.stack([np.ctypeslib.as_array(row, (config.vocab_size,)).copy() for row in logits])
    ours, runtime = np.zeros_like(theirs), Runtime(load(tmp_path), kv_blocks=1, threads=1)
    tokens = np.array(peer.tokens[:count], np.int32)
    runtime.step(tokens, rows, np.zeros(count, np.int32), np.zeros((1, 1), np.int32), rows, ours)
    # Both round activations to 8 bits, each in its own way.
    assert np.median(np.sqrt(((ours - theirs) ** 2).mean(axis=1)) / theirs.std(axis=1)) < 0.03


def floats(packed: Packed) -> npt.NDArray[np.float32]:
    matrix = unpack(packed)
    return matrix.q * np.repeat(matrix.scale.astype(np.float32), matrix.group, axis=1)
