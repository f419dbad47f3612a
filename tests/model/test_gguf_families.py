"""GGUF files of the newer families, written as llama.cpp's converters do, equal to the Hugging Face tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fulgur.errors import FulgurError
from fulgur.kernels.reference import FloatModel
from fulgur.model.config import DeltaShape, ModelConfig, RopeScaling
from fulgur.model.gguf import GgufSource
from fulgur.model.random import MemorySource, random_model, tiny_config
from fulgur.model.stored import MXFP4_VALUES
from fulgur.model.tensors import tensor_shapes
from fulgur.model.weights import open_source

gguf = pytest.importorskip("gguf")
Kind = gguf.GGMLQuantizationType
ARCH = {
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
    "ministral3": "mistral3",
    "qwen3_next": "qwen3next",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
}
YARN = RopeScaling("yarn", factor=4.0, original_context=32, truncate=False)
MISTRAL = RopeScaling("yarn", factor=4.0, original_context=32, mscale=1.0, mscale_all_dim=1.0)
CASES = {
    "qwen3_moe": tiny_config("qwen3_moe", norm_topk=True),
    "gpt_oss": tiny_config("gpt_oss", rope_scaling=YARN, swiglu_limit=7.0),
    "ministral3": tiny_config("ministral3", rope_scaling=MISTRAL, window=0, layer_kinds=(), query_scaling=(0.125, 32)),
    "qwen3_next": tiny_config("qwen3_next"),
    "qwen3_5": tiny_config("qwen3_5", delta=DeltaShape(2, 6, 16, 32, 4)),
    "qwen3_5_moe": tiny_config("qwen3_5_moe"),
    "qwen3_5-mtp": tiny_config("qwen3_5", draft_vocab=301),
    "qwen3_5_moe-mtp": tiny_config("qwen3_5_moe", draft_vocab=301),
    "qwen3_next-mtp": tiny_config("qwen3_next", draft_vocab=301),
}
NEXTN = {
    "mtp.fc": "eh_proj",
    "mtp.pre_fc_norm_embedding": "enorm",
    "mtp.pre_fc_norm_hidden": "hnorm",
    "mtp.norm": "shared_head_norm",
}


def metadata(writer: Any, config: ModelConfig, mtp: int = 0) -> None:
    arch = writer.arch
    writer.add_context_length(config.max_context)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.n_layers + mtp)
    writer.add_feed_forward_length(config.d_ffn)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.rotated)
    writer.add_eos_token_id(7)
    if mtp:
        writer.add_uint32(f"{arch}.nextn_predict_layers", mtp)
    if config.rope_scaling is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(config.rope_scaling.factor)
        writer.add_rope_scaling_orig_ctx_len(config.rope_scaling.original_context)
    if config.query_scaling is not None:
        writer.add_float32(f"{arch}.rope.scaling.yarn_log_multiplier", 1.0)
        writer.add_float32(f"{arch}.attention.temperature_scale", config.query_scaling[0])
    if config.window:
        writer.add_sliding_window(config.window)
    if config.n_experts:
        writer.add_expert_count(config.n_experts)
        writer.add_expert_used_count(config.experts_per_token)
        writer.add_expert_feed_forward_length(config.d_expert)
    if config.d_shared:
        writer.add_expert_shared_feed_forward_length(config.d_shared)
    if config.delta is not None:
        writer.add_ssm_conv_kernel(config.delta.taps)
        writer.add_ssm_state_size(config.delta.k_dim)
        writer.add_ssm_group_count(config.delta.k_heads)
        writer.add_ssm_time_step_rank(config.delta.v_heads)
        writer.add_ssm_inner_size(config.delta.values)
        writer.add_uint32(f"{arch}.full_attention_interval", 4)


def converted(config: ModelConfig, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The converters' names, orders and sums."""
    out: dict[str, np.ndarray] = {}
    delta = config.delta
    plain = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    plain["lm_head.weight"] = "output.weight"
    rest = {
        "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp",
        "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
        "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
        "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
        "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
        "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
        "linear_attn.out_proj": "ssm_out",
        "post_attention_layernorm": "post_attention_norm" if config.traits.gated or config.traits.sinks else "ffn_norm",
    }  # fmt: skip

    def tiled(a: np.ndarray, dim: int, axis: int = 0) -> np.ndarray:
        """Value heads: [key head, nth, dim] becomes [nth, key head, dim]."""
        a = np.moveaxis(a, axis, 0)
        if config.traits.grouped_delta:
            return np.moveaxis(a, 0, axis)
        shaped = a.reshape(delta.k_heads, -1, dim, *a.shape[1:]).swapaxes(0, 1)
        return np.ascontiguousarray(np.moveaxis(shaped.reshape(a.shape), 0, axis))

    for name, value in tensors.items():
        if (name.endswith("norm.weight") and "linear_attn" not in name) or "pre_fc_norm" in name:
            value = value + np.float32(config.traits.norm_offset)
        if name in plain:
            out[plain[name]] = value
            continue
        if name.removesuffix(".weight") in NEXTN:
            out[f"blk.{config.n_layers}.nextn.{NEXTN[name.removesuffix('.weight')]}.weight"] = value
            continue
        _, _, layer, tail = name.split(".", 3)
        to = f"blk.{config.n_layers if name.startswith('mtp.') else layer}."
        if ".experts." in name:
            _, _, e, part, kind = tail.split(".")
            stack = out.setdefault(
                f"{to}ffn_{part.removesuffix('_proj')}_exps.{kind}",
                np.empty((config.n_experts, *value.shape), np.float32),
            )
            stack[int(e)] = value
            continue
        module, _, kind = tail.rpartition(".")
        if tail == "self_attn.sinks":
            out[to + "attn_sinks.weight"] = value
        elif tail == "linear_attn.A_log":
            out[to + "ssm_a"] = tiled(-np.exp(value), 1)
        elif tail == "linear_attn.dt_bias":
            out[to + "ssm_dt.bias"] = tiled(value, 1)
        elif module == "linear_attn.in_proj_qkvz":
            per = delta.v_heads // delta.k_heads * delta.v_dim
            q, k, v, z = np.split(
                value.reshape(delta.k_heads, -1, config.d_model), np.cumsum((delta.k_dim, delta.k_dim, per)), axis=1
            )
            out[to + "attn_qkv.weight"] = np.concatenate([a.reshape(-1, config.d_model) for a in (q, k, v)])
            out[to + "attn_gate.weight"] = z.reshape(-1, config.d_model)
        else:
            if module == "linear_attn.conv1d":
                value = value.reshape(len(value), -1)
            if module in ("linear_attn.conv1d", "linear_attn.in_proj_qkv"):
                value = np.concatenate([value[: 2 * delta.keys], tiled(value[2 * delta.keys :], delta.v_dim)])
            if module == "linear_attn.in_proj_z":
                value = tiled(value, delta.v_dim)
            if module in ("linear_attn.in_proj_a", "linear_attn.in_proj_b"):
                value = tiled(value, 1)
            if module == "linear_attn.out_proj":
                value = tiled(value, delta.v_dim, axis=1)
            if module == "mlp.shared_expert_gate":
                value = value.reshape(-1)
            if config.family == "ministral3" and module in ("self_attn.q_proj", "self_attn.k_proj"):
                halves = value.reshape(-1, 2, config.head_dim // 2, config.d_model)
                value = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)
            out[f"{to}{rest[module]}.{kind}"] = value
    return out


def write(path: Path, config: ModelConfig, stored: dict[str, np.ndarray], **options: Any) -> None:
    writer = gguf.GGUFWriter(path, ARCH[config.family], **options)
    metadata(writer, config, mtp=1 if config.draft_vocab else 0)
    for name, value in stored.items():
        writer.add_tensor(name, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check(source: Any, config: ModelConfig, tensors: dict[str, np.ndarray]) -> None:
    found = source.config
    names = (
        "family",
        "layer_kinds",
        "window",
        "rotary_dim",
        "delta",
        "n_experts",
        "d_shared",
        "query_scaling",
        "n_layers",
        "draft_vocab",
    )
    assert {name: getattr(found, name) for name in names} == {name: getattr(config, name) for name in names}
    for name, shape in tensor_shapes(config).items():
        value = source.rows(name, np.arange(shape[0])) if len(shape) == 2 else source.vector(name)
        np.testing.assert_allclose(value.reshape(shape), tensors[name], rtol=1e-5, atol=1e-6, err_msg=name)
    tokens = np.arange(60)
    expected = FloatModel(MemorySource(config, tensors)).logits(tokens)
    np.testing.assert_allclose(FloatModel(source).logits(tokens), expected, atol=2e-4)
    if config.draft_vocab:
        expected = FloatModel(MemorySource(config, tensors)).draft_logits(tokens)
        np.testing.assert_allclose(FloatModel(source).draft_logits(tokens), expected, atol=2e-4)


@pytest.mark.parametrize("family", CASES)
def test_tensors_and_logits(family: str, tmp_path: Path) -> None:
    config = CASES[family]
    tensors = random_model(config, 6)
    write(tmp_path / "m.gguf", config, converted(config, tensors))
    check(GgufSource(tmp_path / "m.gguf"), config, tensors)


def test_several_parts(tmp_path: Path) -> None:
    config = CASES["qwen3_5_moe"]
    tensors = random_model(config, 6)
    write(tmp_path / "m.gguf", config, converted(config, tensors), split_max_tensors=20)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) > 2
    check(open_source(tmp_path), config, tensors)
    parts[1].unlink()
    with pytest.raises(FulgurError, match="this part is missing"):
        open_source(tmp_path)
    with pytest.raises(FulgurError, match="not that of the first"):
        open_source(parts[-1])


def test_mxfp4_blocks(tmp_path: Path) -> None:
    """Of 17 bytes: the scale, then sixteen bytes whose low halves come first."""
    config, rng = CASES["gpt_oss"], np.random.default_rng(8)
    tensors = random_model(config, 6)
    stored = converted(config, tensors)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gpt-oss")
    metadata(writer, config)
    for name, value in stored.items():
        if not name.endswith("_exps.weight"):
            writer.add_tensor(name, np.ascontiguousarray(value))
            continue
        layer, short = name.split(".")[1], name.split("_")[1]
        codes = rng.integers(0, 16, (*value.shape[:2], value.shape[2] // 32, 32)).astype(np.uint8)
        scales = rng.integers(122, 127, (*codes.shape[:3], 1)).astype(np.uint8)
        blocks = np.concatenate([scales, codes[..., :16] | codes[..., 16:] << 4], axis=-1)
        writer.add_tensor(name, blocks.reshape(*value.shape[:2], -1), raw_dtype=Kind.MXFP4)
        values = MXFP4_VALUES[codes] * 2.0 ** (scales.astype(np.float32) - 127)
        for e in range(config.n_experts):
            tensors[f"model.layers.{layer}.mlp.experts.{e}.{short}_proj.weight"] = (
                values[e].reshape(value.shape[1:]).astype(np.float32)
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    check(GgufSource(tmp_path / "m.gguf"), config, tensors)
