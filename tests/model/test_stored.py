"""Checkpoints that are stored narrow: each format written as its makers do, read back value by value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fulgur.errors import FulgurError
from fulgur.kernels.reference import FloatModel
from fulgur.model.config import ModelConfig
from fulgur.model.folder import FolderSource
from fulgur.model.pack import unpack
from fulgur.model.quantise import dequantise
from fulgur.model.random import MemorySource, random_model, tiny_config, write_hf_folder
from fulgur.model.safetensors import write_safetensors
from fulgur.model.stored import FP8_VALUES, MXFP4_VALUES
from fulgur.model.tensors import TensorSource
from fulgur.model.weights import assemble

RNG = np.random.default_rng(0)
TOKENS = np.arange(40)
Stored = dict[str, tuple[str, np.ndarray]]


def write(folder: Path, config: ModelConfig, stored: Stored, quantisation: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    raw = {**config.to_json(), "quantization_config": quantisation}
    (folder / "config.json").write_text(json.dumps(raw))
    write_safetensors(folder / "model.safetensors", stored)


def check(folder: Path, config: ModelConfig, expected: dict[str, np.ndarray]) -> None:
    """Every tensor, and the logits of the whole."""
    source = FolderSource(folder)
    for name, value in expected.items():
        got = source.vector(name) if value.ndim == 1 else source.rows(name, np.arange(len(value)))
        np.testing.assert_allclose(got.reshape(value.shape), value, rtol=1e-6, err_msg=name)
    ours, wanted = FloatModel(source).logits(TOKENS), FloatModel(MemorySource(config, expected)).logits(TOKENS)
    np.testing.assert_allclose(ours, wanted, atol=1e-4)


def narrow_names(tensors: dict[str, np.ndarray]) -> list[str]:
    """The matrices that makers quantise."""
    wide = (
        "embed",
        "lm_head",
        "mlp.gate.weight",
        "router",
        "in_proj_a",
        "in_proj_b",
        "in_proj_ba",
        "shared_expert_gate",
    )
    return [name for name, value in tensors.items() if value.ndim == 2 and not any(part in name for part in wide)]


def as_fp8(value: np.ndarray, block: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and the values they stand for."""
    rows, cols = value.shape
    if block is None:
        scale = np.array(np.abs(value).max() / 448, np.float32)
        wide = np.full(value.shape, scale)
    else:
        scale = np.empty((-(-rows // block), -(-cols // block)), np.float32)
        for i, j in np.ndindex(*scale.shape):
            part = value[i * block : (i + 1) * block, j * block : (j + 1) * block]
            scale[i, j] = np.abs(part).max() / 448
        wide = np.repeat(np.repeat(scale, block, 0), block, 1)[:rows, :cols]
    finite = np.where(np.isnan(FP8_VALUES), np.float32(1e9), FP8_VALUES)
    order = np.argsort(finite)
    at = np.clip(np.searchsorted(finite[order], value / wide), 1, 254)
    below = np.abs(finite[order][at - 1] - value / wide) < np.abs(finite[order][at] - value / wide)
    codes = order[np.where(below, at - 1, at)].astype(np.uint8)
    return codes, scale, FP8_VALUES[codes] * wide


def test_fp8_values_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(FP8_VALUES, theirs)


@pytest.mark.parametrize("family", ["mistral", "qwen3_moe", "qwen3_5", "qwen3_next"])
@pytest.mark.parametrize("block", [128, None])
def test_fp8(family: str, block: int | None, tmp_path: Path) -> None:
    config = tiny_config(family, d_model=160, d_ffn=288)
    tensors = random_model(config, 1)
    stored: Stored = {name: ("F32", value) for name, value in tensors.items()}
    for name in narrow_names(tensors):
        codes, scale, tensors[name] = as_fp8(tensors[name], block)
        stored[name] = ("F8_E4M3", codes)
        stored[name + "_scale_inv"] = ("F32", scale)
    write(tmp_path, config, stored, {"quant_method": "fp8", "weight_block_size": [128, 128] if block else None})
    check(tmp_path, config, tensors)


@pytest.mark.parametrize("fp8", [False, True])
def test_fused_experts_beneath_a_vision_tower(fp8: bool, tmp_path: Path) -> None:
    """Qwen3.5's folders: text_config, model.language_model.*, all experts of a layer in one tensor, a tower to skip."""
    config = tiny_config("qwen3_5_moe", d_model=160, d_expert=128)
    tensors = random_model(config, 2)
    stored: Stored = {"model.visual.patch.weight": ("F32", np.zeros((4, 4), np.float32))}
    for name, value in tensors.items():
        if ".experts." not in name:
            stored[name.replace("model.", "model.language_model.", 1)] = ("F32", value)
    for i in range(config.n_layers):
        prefix = f"model.layers.{i}.mlp.experts."
        for fused, parts in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
            each = []
            for e in range(config.n_experts):
                names = [f"{prefix}{e}.{part}_proj.weight" for part in parts]
                whole = np.concatenate([tensors[name] for name in names])
                codes, scale, value = as_fp8(whole, 128)
                each.append((codes, scale) if fp8 else (whole, whole))
                for name, part in zip(names, np.split(value if fp8 else whole, len(names)), strict=True):
                    tensors[name] = part
            to = prefix.replace("model.", "model.language_model.", 1) + fused
            stored[to] = ("F8_E4M3" if fp8 else "F32", np.stack([codes for codes, _ in each]))
            if fp8:
                stored[to + "_scale_inv"] = ("F32", np.stack([scale for _, scale in each]))
    tmp_path.mkdir(exist_ok=True)
    raw = {"model_type": "qwen3_5_moe", "vision_config": {"depth": 2}, "text_config": config.to_json()}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    write_safetensors(tmp_path / "model.safetensors", stored)
    check(tmp_path, config, tensors)


def test_mxfp4(tmp_path: Path) -> None:
    config = tiny_config("gpt_oss", d_model=96, d_expert=64, d_ffn=64)
    tensors = random_model(config, 3)
    write_hf_folder(tmp_path, config, tensors)
    stored: Stored = {name: ("F32", value) for name, value in tensors.items() if ".experts." not in name}
    for i in range(config.n_layers):
        prefix = f"model.layers.{i}.mlp.experts."
        for fused, parts in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
            rows, cols = sum(len(tensors[f"{prefix}0.{part}_proj.weight"]) for part in parts), 64
            cols = tensors[f"{prefix}0.{parts[0]}_proj.weight"].shape[1]
            codes = RNG.integers(0, 16, (config.n_experts, rows, cols // 32, 32)).astype(np.uint8)
            scales = RNG.integers(122, 127, (config.n_experts, rows, cols // 32)).astype(np.uint8)
            values = MXFP4_VALUES[codes] * (2.0 ** (scales.astype(np.float32) - 127))[..., None]
            values = values.reshape(config.n_experts, rows, cols).astype(np.float32)
            stored[f"{prefix}{fused}_blocks"] = ("U8", codes[..., 0::2] | codes[..., 1::2] << 4)
            stored[f"{prefix}{fused}_scales"] = ("U8", scales)
            bias = RNG.standard_normal((config.n_experts, rows)).astype(np.float32)
            stored[f"{prefix}{fused}_bias"] = ("F32", bias)
            for e in range(config.n_experts):
                for k, part in enumerate(parts):  # gate and up by turns
                    tensors[f"{prefix}{e}.{part}_proj.weight"] = values[e, k :: len(parts)]
                    tensors[f"{prefix}{e}.{part}_proj.bias"] = bias[e, k :: len(parts)]
    write(tmp_path, config, stored, {"quant_method": "mxfp4"})
    check(tmp_path, config, tensors)
    same_bits(FolderSource(tmp_path), tensors, expert=True)


def words(nibbles: np.ndarray) -> np.ndarray:
    """Eight values of the last axis in one int32, lowest first."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    return (
        (nibbles.reshape(*nibbles.shape[:-1], -1, 8).astype(np.uint32) << shifts)
        .sum(-1, dtype=np.uint32)
        .view(np.int32)
    )


def shuffled(a: np.ndarray) -> np.ndarray:
    """AWQ's order: nibble i holds column order[i] of eight."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return words(a.reshape(len(a), -1, 8)[:, :, order].reshape(len(a), -1))


@pytest.mark.parametrize("method", ["gptq", "gptq_v2", "gptq_act_order", "awq", "compressed", "compressed_zero"])
def test_four_bits(method: str, tmp_path: Path) -> None:
    config, group = tiny_config("qwen3"), 32
    tensors = random_model(config, 4)
    stored: Stored = {name: ("F32", value) for name, value in tensors.items()}
    quantisation: dict[str, Any] = {"quant_method": method.split("_")[0], "bits": 4, "group_size": group}
    for name in narrow_names(tensors):
        rows, cols = tensors[name].shape
        q = RNG.integers(0, 16, (rows, cols)).astype(np.uint8)
        scale = RNG.uniform(0.01, 0.02, (rows, cols // group)).astype(np.float32)
        zero = RNG.integers(1, 16, (rows, cols // group)).astype(np.uint8)
        of = np.arange(cols) // group
        stem = name.removesuffix(".weight")
        del stored[name]
        if method.startswith("gptq"):
            if method == "gptq_act_order":
                of = RNG.permutation(of)
                stored[stem + ".g_idx"] = ("I32", of.astype(np.int32))
            if method == "gptq_v2":
                quantisation["checkpoint_format"] = "gptq_v2"
            stored[stem + ".qweight"] = (
                "I32",
                words(np.ascontiguousarray(q.T.reshape(-1, 8, rows).swapaxes(1, 2)))[..., 0],
            )
            stored[stem + ".scales"] = ("F32", np.ascontiguousarray(scale.T))
            less = 0 if method == "gptq_v2" else 1
            stored[stem + ".qzeros"] = ("I32", words((zero.T - less).astype(np.uint8)))
        elif method == "awq":
            stored[stem + ".qweight"] = ("I32", shuffled(np.ascontiguousarray(q.T)))
            stored[stem + ".scales"] = ("F32", np.ascontiguousarray(scale.T))
            stored[stem + ".qzeros"] = ("I32", shuffled(np.ascontiguousarray(zero.T)))
        else:
            stored[stem + ".weight_packed"] = ("I32", words(q))
            stored[stem + ".weight_scale"] = ("F32", scale)
            stored[stem + ".weight_shape"] = ("I64", np.array([rows, cols]))
            if method == "compressed":
                zero[:] = 8
            else:
                stored[stem + ".weight_zero_point"] = (
                    "I32",
                    np.ascontiguousarray(words(np.ascontiguousarray(zero.T)).T),
                )
            quantisation = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
        tensors[name] = (q.astype(np.float32) - zero[:, of].astype(np.float32)) * scale[:, of]
    write(tmp_path, config, stored, quantisation)
    check(tmp_path, config, tensors)
    kept = FolderSource(tmp_path).native("model.layers.1.mlp.down_proj.weight")
    assert kept == ((4, 32) if method == "compressed" else None)
    if kept:
        same_bits(FolderSource(tmp_path), tensors, expert=False)


def same_bits(source: TensorSource, tensors: dict[str, np.ndarray], expert: bool) -> None:
    """Packed with nothing said about bits, the values are those of the file."""
    weights = assemble(source)
    packed = weights.experts["layers.1.experts.down"].expert(2) if expert else weights.matrices["layers.1.down"]
    name = f"model.layers.1.mlp.{'experts.2.' if expert else ''}down_proj.weight"
    np.testing.assert_allclose(dequantise(unpack(packed)), tensors[name], rtol=1e-3 if not expert else 0)


def test_what_is_not_supported_is_named(tmp_path: Path) -> None:
    config = tiny_config("qwen3")
    for quantisation, message in (
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({"quant_method": "gptq", "bits": 3}, "gptq of 3 bits is not supported"),
    ):
        tensors = random_model(config, 0)
        stored: Stored = {name: ("F32", value) for name, value in tensors.items()}
        name = "model.layers.0.mlp.up_proj"
        rows, cols = stored.pop(name + ".weight")[1].shape
        stored |= {
            f"{name}.{part}": ("I32", np.zeros((size, rows), np.int32)) for part, size in (("qweight", cols // 8),)
        }
        stored |= {f"{name}.scales": ("F32", np.zeros((2, rows), np.float32))}
        stored |= {f"{name}.qzeros": ("I32", np.zeros((2, rows // 8), np.int32))}
        write(tmp_path, config, stored, quantisation)
        with pytest.raises(FulgurError, match=message):
            FolderSource(tmp_path)
