"""The peer's file of a model of experts holds the numbers of ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fulgur.bench.packed_gguf import write_packed_gguf
from fulgur.bench.random_folder import write_random
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


def floats(packed: Packed) -> npt.NDArray[np.float32]:
    matrix = unpack(packed)
    return matrix.q * np.repeat(matrix.scale.astype(np.float32), matrix.group, axis=1)
