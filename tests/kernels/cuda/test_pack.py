"""Packed weights: nothing lost on the way to the GPU's layout and back, and the quantiser's values to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import SMALL

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.formats import FORMATS, GENERAL_ONLY
from fulgur.kernels.cuda.pack import E2M1, codes_value, from_nibbles, interleave, nibbles, order, pack, quantise, unpack
from fulgur.kernels.cuda.plan import make_plan
from fulgur.kernels.cuda.weights import from_folder, random_weights
from fulgur.model.quantise import dequantise
from fulgur.model.quantise import quantise as canonical
from fulgur.model.random import random_model, write_hf_folder
from fulgur.model.safetensors import write_safetensors

SHAPES = ((16, 128), (40, 320), (3, 64), (129, 256))


def random(rows: int, cols: int) -> torch.Tensor:
    return torch.randn((rows, cols), generator=torch.Generator().manual_seed(rows * cols))


@pytest.mark.parametrize("name", FORMATS)
def test_every_value_has_one_place(name: str) -> None:
    assert sorted(order(FORMATS[name])) == list(range(16 * 128))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FORMATS)
def test_round_trip(name: str, shape: tuple[int, int]) -> None:
    fmt, weight = FORMATS[name], random(*shape)
    values, scale = quantise(weight, fmt)
    packed = pack(values, fmt, scale)
    assert packed.numel() == -(-shape[0] // 16) * -(-shape[1] // 128) * fmt.block_bytes
    wide = codes_value(values, torch.float32) if name == "mxfp4" else values.float()
    if scale is not None:
        factor = torch.exp2(scale.float() - 127) if name == "mxfp4" else scale.float()
        wide = wide * factor.repeat_interleave(128 // fmt.groups, 1)[:, : shape[1]]
    assert torch.equal(unpack(packed, fmt, *shape), wide)
    limit = {"bf16": 0.004, "fp8": 0.04, "fp8-rows": 0.04, "int4": 0.12, "int4-64": 0.11, "mxfp4": 0.14}[name]
    assert torch.linalg.norm(wide - weight) / torch.linalg.norm(weight) < limit


@pytest.mark.parametrize(("name", "group"), [("int4", 128), ("int4-64", 64)])
def test_int4_is_the_quantiser_of_the_cpu(name: str, group: int) -> None:
    weight = random(33, 256)
    expected = canonical(weight.numpy(), 4, group)
    values, scale = quantise(weight, FORMATS[name])
    assert np.array_equal(values.numpy(), expected.q)
    assert np.array_equal(
        unpack(pack(values, FORMATS[name], scale), FORMATS[name], 33, 256).numpy(), dequantise(expected)
    )


def test_fragments_lie_where_the_instructions_read_them() -> None:
    """Lane 14 (g = 3, t = 2): chunk 5 of bf16 is rows 3 and 11, columns 64 + 16 + 4 + 0..3; the third word of chunk 2
    of fp8 is the same columns of row 3; int4 has them as the first weights of the third word of chunk 1."""
    places = order(FORMATS["bf16"]).reshape(8, 32, 8)[5, 14]
    assert places.tolist() == [row * 128 + 84 + k + i for k in (0, 2) for row in (3, 11) for i in (0, 1)]
    word = [3 * 128 + 84 + k for k in (0, 2, 1, 3)]
    assert order(FORMATS["fp8"]).reshape(4, 32, 4, 4)[2, 14, 2].tolist() == word
    assert order(FORMATS["int4"]).reshape(2, 32, 4, 4, 2)[1, 14, 2, :, 0].tolist() == word
    assert order(FORMATS["int4"]).reshape(2, 32, 4, 4, 2)[1, 14, 2, :, 1].tolist() == [place + 32 for place in word]


def test_a_mask_and_a_rotation_make_fp8_codes_of_4_bits() -> None:
    q = torch.randint(-7, 8, (64, 8), generator=torch.Generator().manual_seed(1), dtype=torch.int8)
    packed = nibbles(q)
    assert torch.equal(from_nibbles(packed), q)
    word = packed.view(torch.int32).to(torch.int64)[:, 0] & 0xFFFFFFFF
    for first, which in ((word, 0), (word >> 4 | word << 28, 1)):
        codes = (first & 0x87878787)[:, None] >> torch.arange(0, 32, 8) & 0xFF
        numbers = codes.to(torch.uint8).view(torch.float8_e4m3fn).float()
        assert torch.equal(numbers * 512, q[:, which::2].float())


def test_gate_and_up_rows_alternate_by_eight() -> None:
    gate, up = torch.full((12, 1), 1.0), torch.full((12, 1), 2.0)
    assert interleave(gate, up)[:, 0].tolist() == [1.0] * 8 + [2.0] * 8 + [1.0] * 4 + [0.0] * 4 + [2.0] * 4 + [0.0] * 4


def test_scales_that_differ_within_eight_rows_are_refused() -> None:
    values = torch.ones((16, 128)).to(torch.float8_e4m3fn)
    with pytest.raises(FulgurError, match="differ within 8 rows"):
        pack(values, FORMATS["fp8"], torch.arange(1.0, 17.0)[:, None])


def test_checkpoint_with_fp8_blocks_keeps_its_bits(tmp_path: Path) -> None:
    config = SMALL["qwen3_moe"]
    tensors = random_model(config, 1)
    write_hf_folder(tmp_path, config, tensors)
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    stored, wide = {}, {}
    for name, value in tensors.items():
        if "proj" not in name:
            stored[name] = ("F32", value)
            continue
        q, scale = quantise(torch.from_numpy(value), FORMATS["fp8"])
        assert scale is not None
        stored[name] = ("F8_E4M3", q.view(torch.uint8).numpy())
        stored[name + "_scale_inv"] = ("F32", scale[::128].contiguous().numpy())
        wide[name] = (q.float() * scale.repeat_interleave(128, 1)[:, : q.shape[1]]).numpy()
    write_safetensors(tmp_path / "model.safetensors", stored)
    weights = from_folder(tmp_path, make_plan(config, weights="fp8", ctas=4), "cpu")
    plan = weights.plan
    matrix = plan.matrices["down"]
    start = plan.address(matrix, 1, 5, 0, 0)
    got = unpack(weights.arena[start : start + matrix.copy_bytes], matrix.format, matrix.rows, matrix.cols)
    assert np.array_equal(got.numpy(), wide["model.layers.1.mlp.experts.5.down_proj.weight"])


def test_codes_of_mxfp4() -> None:
    codes = torch.arange(-7, 8, dtype=torch.int8)
    for kind in (torch.float32, torch.bfloat16):
        assert codes_value(codes, kind).tolist() == [*(-v for v in E2M1[:0:-1]), *E2M1]


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in GENERAL_ONLY])
def test_random_weights_are_finite_and_of_the_right_size(name: str) -> None:
    weights = random_weights(make_plan(SMALL["qwen3_moe"], weights=name, ctas=4), "cpu")
    matrix = weights.plan.matrices["qkv"]
    start = weights.plan.address(matrix, 1, 0, 0, 0)
    values = unpack(weights.arena[start : start + matrix.copy_bytes], matrix.format, matrix.rows, matrix.cols)
    assert 0.7 < float(values.std()) * matrix.cols**0.5 < 1.3
