"""GGUF files written by the `gguf` package: block formats, configs and tensors equal to the Hugging Face folder's."""

from pathlib import Path

import numpy as np
import pytest

from fulgur.errors import FulgurError
from fulgur.kernels.reference import FloatModel
from fulgur.model.config import ModelConfig, RopeScaling
from fulgur.model.gguf import GgufSource
from fulgur.model.gguf_blocks import TO_FLOAT
from fulgur.model.gguf_file import TYPES
from fulgur.model.gguf_names import gguf_name, rotary_rows
from fulgur.model.pack import unpack
from fulgur.model.random import MemorySource, random_model, tiny_config
from fulgur.model.rope import rope_frequencies
from fulgur.model.tensors import tensor_shapes
from fulgur.model.weights import load, open_source

gguf = pytest.importorskip("gguf")
Kind = gguf.GGMLQuantizationType


def write(path: Path, config: ModelConfig, kind: "Kind" = Kind.F32, factors: np.ndarray | None = None) -> dict:
    """Write a random model as llama.cpp's converter would; returns the tensors in Hugging Face's order."""
    tensors = random_model(config, 5)
    writer = gguf.GGUFWriter(path, config.family)
    writer.add_context_length(config.max_context)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.n_layers)
    writer.add_feed_forward_length(config.d_ffn)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    if config.rope_scaling is not None and factors is None:
        writer.add_rope_scaling_type(gguf.RopeScalingType(config.rope_scaling.kind))
        writer.add_rope_scaling_factor(config.rope_scaling.factor)
        writer.add_rope_scaling_orig_ctx_len(config.rope_scaling.original_context)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token{i}" for i in range(config.vocab_size)])
    writer.add_eos_token_id(7)
    writer.add_bos_token_id(1)
    for name, value in tensors.items():
        stored = value
        if config.family == "llama" and (".q_proj." in name or ".k_proj." in name):
            stored = np.empty_like(value)
            stored[rotary_rows(len(value), config.head_dim)] = value
        if value.ndim == 1 or kind == Kind.F32:
            writer.add_tensor(gguf_name(name), stored)
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(stored, kind), raw_dtype=kind)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.mark.parametrize("name", sorted(TO_FLOAT))
def test_block_formats_match_the_gguf_package(name: str) -> None:
    """Random bytes are valid blocks of every format; only their fp16 scales are kept finite."""
    kind = next(t for t in TYPES.values() if t.name == name)
    blocks = np.random.default_rng(0).integers(0, 256, (37, kind.size), np.uint8)
    halves = {"Q6_K": [208], "F32": [], "BF16": [], "F16": [0]}.get(name, [0] if name.endswith("_0") else [0, 2])
    for at in halves:
        blocks[:, at : at + 2] = np.random.default_rng(at).standard_normal((37, 1)).astype(np.float16).view(np.uint8)
    if name in ("F32", "BF16"):
        blocks[:, -1] &= 0x3F  # no infinities
    theirs = gguf.quants.dequantize(blocks, Kind[name])
    np.testing.assert_allclose(TO_FLOAT[name](blocks), theirs, rtol=1e-6)


def test_every_size_matches_the_gguf_package() -> None:
    for number, kind in TYPES.items():
        assert Kind(number).name == kind.name
        assert gguf.GGML_QUANT_SIZES[Kind(number)] == (kind.block, kind.size)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_tensors_and_config_match(family: str, tied: bool, tmp_path: Path) -> None:
    config = tiny_config(family, tied=tied, eos_ids=(7,), bos_id=1)
    tensors = write(tmp_path / "m.gguf", config)
    source = GgufSource(tmp_path / "m.gguf")
    assert {**source.config.__dict__, "norm_eps": 0} == {**config.__dict__, "norm_eps": 0}
    assert source.config.norm_eps == pytest.approx(config.norm_eps)  # GGUF keeps it in float32
    for name, shape in tensor_shapes(config).items():
        value = source.vector(name) if len(shape) == 1 else source.rows(name, np.arange(shape[0]))
        np.testing.assert_array_equal(value, tensors[name], err_msg=name)
    assert source.tokenizer_metadata["tokenizer.ggml.tokens"][:2] == ["token0", "token1"]
    assert all(key.startswith("tokenizer.") for key in source.tokenizer_metadata)


@pytest.mark.parametrize(("kind", "bits"), [(Kind.Q8_0, 8), (Kind.Q4_0, 4)])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_groups_of_32_are_kept_bit_by_bit(kind: "Kind", bits: int, family: str, tmp_path: Path) -> None:
    config = tiny_config(family)
    tensors = write(tmp_path / "m.gguf", config, kind)
    weights = load(tmp_path / "m.gguf")
    expected = {
        "layers.1.qkv": np.concatenate([tensors[f"model.layers.1.self_attn.{s}_proj.weight"] for s in "qkv"]),
        "layers.0.down": tensors["model.layers.0.mlp.down_proj.weight"],
        "head": tensors["lm_head.weight"],
    }
    for name, value in expected.items():
        matrix = unpack(weights.matrices[name])
        assert (matrix.bits, matrix.group) == (bits, 32)
        stored = gguf.quants.quantize(value, kind)
        blocks = stored.reshape(-1, stored.shape[1] // (value.shape[1] // 32))
        np.testing.assert_array_equal(matrix.scale.reshape(-1, 1), blocks[:, :2].copy().view(np.float16))
        # q times scale is the file's own value.
        from fulgur.model.quantise import dequantise

        np.testing.assert_array_equal(dequantise(matrix), gguf.quants.dequantize(stored, kind))


def test_other_bits_than_the_file_holds(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", tiny_config("qwen3"), Kind.Q8_0)
    weights = load(tmp_path, bits=4, group=64)  # a folder with one .gguf in it
    assert {m.bits for m in weights.matrices.values()} == {4} and weights.matrices["head"].group == 64


def test_formats_that_are_not_ours_become_int8(tmp_path: Path) -> None:
    tensors = write(tmp_path / "m.gguf", tiny_config("qwen3"), Kind.Q4_1)
    source = GgufSource(tmp_path / "m.gguf")
    name = "model.layers.0.mlp.up_proj.weight"
    theirs = gguf.quants.dequantize(gguf.quants.quantize(tensors[name], Kind.Q4_1), Kind.Q4_1)
    np.testing.assert_allclose(source.rows(name, np.arange(96)), theirs, rtol=1e-6)
    assert {m.bits for m in load(tmp_path / "m.gguf").matrices.values()} == {8}


@pytest.mark.parametrize(
    "scaling", [RopeScaling("linear", 2.0, original_context=512), RopeScaling("yarn", 4.0, original_context=64)]
)
def test_rope_scaling_from_metadata(scaling: RopeScaling, tmp_path: Path) -> None:
    config = tiny_config("qwen3", rope_scaling=scaling)
    write(tmp_path / "m.gguf", config)
    assert GgufSource(tmp_path / "m.gguf").config.rope_scaling == scaling


def test_llama3_scaling_arrives_as_frequency_factors(tmp_path: Path) -> None:
    scaled = tiny_config("llama", rope_scaling=RopeScaling("llama3", 8.0, original_context=64))
    wanted, plain = rope_frequencies(scaled)[0], rope_frequencies(tiny_config("llama"))[0]
    tensors = write(tmp_path / "m.gguf", scaled, factors=plain / wanted)
    source = open_source(tmp_path / "m.gguf")
    assert source.config.rope_scaling is not None and source.config.rope_scaling.kind == "factors"
    np.testing.assert_allclose(rope_frequencies(source.config)[0], wanted, rtol=1e-6)
    tokens = np.arange(100)
    ours = FloatModel(source).logits(tokens)
    np.testing.assert_allclose(ours, FloatModel(MemorySource(scaled, tensors)).logits(tokens), atol=1e-4)


def test_bad_magic(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGML" + bytes(100))
    with pytest.raises(FulgurError, match=r"m\.gguf: not a GGUF file"):
        load(tmp_path / "m.gguf")


def test_unsupported_version(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + (1).to_bytes(4, "little") + bytes(100))
    with pytest.raises(FulgurError, match="version 1 is not supported"):
        load(tmp_path / "m.gguf")


def test_truncated_anywhere(tmp_path: Path) -> None:
    write(tmp_path / "whole.gguf", tiny_config("qwen3", vocab_size=40))
    raw = (tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "m.gguf"
    for size in [5, 20, 100, 700, 2000, len(raw) // 2, len(raw) - 1]:
        path.write_bytes(raw[:size])
        with pytest.raises(FulgurError, match=r"m\.gguf.*truncated"):
            load(path)
    with pytest.raises(FulgurError, match=r"tensor \S+ \(F32 \[\d+.*\]\): expected bytes \d+ to \d+, the file ends"):
        load(path)


def test_unsupported_architecture(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(FulgurError, match="architecture 'mamba' is not supported"):
        load(tmp_path / "m.gguf")


def test_unsupported_quantisation_and_missing_tensor(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", tiny_config("qwen3"))
    raw = (tmp_path / "m.gguf").read_bytes()
    name = b"blk.0.ffn_up.weight"
    at = raw.index(name) + len(name) + 4 + 16  # n_dims, two dims, then the type
    odd = raw[:at] + (99).to_bytes(4, "little") + raw[at + 4 :]
    (tmp_path / "odd.gguf").write_bytes(odd)
    with pytest.raises(FulgurError, match=r"blk.0.ffn_up.weight \[96, 64\]: unknown quantisation type 99"):
        load(tmp_path / "odd.gguf")
    (tmp_path / "iq.gguf").write_bytes(raw[:at] + (20).to_bytes(4, "little") + raw[at + 4 :])
    with pytest.raises(FulgurError, match=r"blk.0.ffn_up.weight \[96, 64\]: quantisation type IQ4_NL is not supported"):
        load(tmp_path / "iq.gguf")
    (tmp_path / "gone.gguf").write_bytes(raw.replace(name, b"blk.0.ffn_xx.weight"))
    with pytest.raises(FulgurError, match=r"tensor blk.0.ffn_up.weight \[96, 64\] is missing"):
        load(tmp_path / "gone.gguf")
    swapped = raw[: at - 16] + raw[at - 8 : at] + raw[at - 16 : at - 8] + raw[at:]
    (tmp_path / "shape.gguf").write_bytes(swapped)
    with pytest.raises(FulgurError, match=r"blk.0.ffn_up.weight: expected shape \[96, 64\], found \[64, 96\]"):
        load(tmp_path / "shape.gguf")
