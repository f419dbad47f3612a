"""Loading: what lands in which matrix, packed folders, and errors that name file, tensor and shapes."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from fulgur.errors import FulgurError
from fulgur.model import safetensors
from fulgur.model.config import ModelConfig, RopeScaling
from fulgur.model.pack import unpack
from fulgur.model.packed_folder import save_packed
from fulgur.model.quantise import quantise
from fulgur.model.random import RandomSource, random_model, tiny_config, write_hf_folder
from fulgur.model.safetensors import SafetensorsFile, write_safetensors
from fulgur.model.weights import Weights, assemble, load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = tiny_config("qwen2", eos_ids=(2, 3), bos_id=1)
    write_hf_folder(tmp_path / "hf", config, random_model(config, 0), shards=2)
    return tmp_path / "hf"


def assert_same(a: Weights, b: Weights) -> None:
    assert a.config == b.config
    assert list(a.matrices) == list(b.matrices) and list(a.vectors) == list(b.vectors)
    for name, matrix in a.matrices.items():
        other = b.matrices[name]
        assert (matrix.bits, matrix.group, matrix.rows, matrix.cols) == (
            other.bits,
            other.group,
            other.rows,
            other.cols,
        )
        np.testing.assert_array_equal(matrix.data, other.data)
    for name, vector in a.vectors.items():
        np.testing.assert_array_equal(vector, b.vectors[name])
    if a.embed is None or b.embed is None:
        assert a.embed is b.embed
    else:
        np.testing.assert_array_equal(a.embed, b.embed)


@pytest.mark.parametrize("bits", [4, 8])
def test_matrices_hold_the_right_rows(bits: int) -> None:
    config = tiny_config("qwen2")
    tensors = random_model(config, 0)
    weights = assemble(RandomSource(config, 0), bits=bits, group=32)
    attention, mlp = "model.layers.1.self_attn.", "model.layers.1.mlp."
    stacked = np.concatenate([tensors[f"{attention}{s}_proj.weight"] for s in "qkv"])
    np.testing.assert_array_equal(unpack(weights.matrices["layers.1.qkv"]).q, quantise(stacked, bits, 32).q)
    gate, up = tensors[mlp + "gate_proj.weight"], tensors[mlp + "up_proj.weight"]
    rows = [part[i : i + 16] for i in range(0, 96, 16) for part in (gate, up)]
    np.testing.assert_array_equal(unpack(weights.matrices["layers.1.gate_up"]).q, quantise(np.vstack(rows), bits, 32).q)
    head = unpack(weights.matrices["head"])
    assert head.rows == 301
    np.testing.assert_array_equal(head.q, quantise(tensors["lm_head.weight"], bits, 32).q)
    bias = np.concatenate([tensors[f"{attention}{s}_proj.bias"] for s in "qkv"])
    np.testing.assert_array_equal(weights.vectors["layers.1.qkv_bias"], bias)
    assert weights.embed is not None
    np.testing.assert_array_equal(weights.embed, tensors["model.embed_tokens.weight"].astype(np.float16))


def test_large_matrices_are_quantised_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = assemble(RandomSource(tiny_config(), 0), bits=4)
    monkeypatch.setattr("fulgur.model.weights._CHUNK_ELEMENTS", 64 * 40)  # pieces of 32 rows
    assert_same(assemble(RandomSource(tiny_config(), 0), bits=4), whole)


def test_head_may_have_other_bits() -> None:
    weights = assemble(RandomSource(tiny_config(), 0), bits=4, head_bits=8)
    assert {name: m.bits for name, m in weights.matrices.items() if m.bits != 4} == {"head": 8}


@pytest.mark.parametrize("family", ["fulgur", "qwen2"])
def test_packed_folder_is_the_same_model(family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scaling = RopeScaling("yarn", factor=2.0, original_context=256, attention_factor=1.5)
    weights = assemble(RandomSource(tiny_config(family, rope_scaling=scaling, eos_ids=(5,)), 0), bits=4, head_bits=8)
    (tmp_path / "tokenizer.json").write_text("{}")
    save_packed(weights, tmp_path / "packed", companions=tmp_path)
    again = load(tmp_path / "packed")
    assert_same(again, weights)
    assert all(matrix.data.ctypes.data % 64 == 0 for matrix in again.matrices.values())
    assert not again.matrices["head"].data.flags.writeable  # a view of the map, not a copy
    assert (tmp_path / "packed" / "tokenizer.json").read_text() == "{}"
    with pytest.raises(FulgurError, match="already packed with 4 bits, but 8 were requested"):
        load(tmp_path / "packed", bits=8)


def test_packed_file_is_valid_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    weights = assemble(RandomSource(tiny_config("qwen2"), 0), bits=8)
    save_packed(weights, tmp_path)
    stored = load_file(tmp_path / "weights.safetensors")
    np.testing.assert_array_equal(stored["layers.0.down"], weights.matrices["layers.0.down"].data)
    np.testing.assert_array_equal(stored["final_norm"], weights.vectors["final_norm"])


def test_files_are_written_in_aligned_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {f"t{i}": ("U8", np.arange(size, dtype=np.uint8)) for i, size in enumerate((0, 5, 200, 64, 1))}
    write_safetensors(tmp_path / "whole", tensors)
    sizes: list[int] = []
    write = safetensors._write
    monkeypatch.setattr(safetensors, "PIECE", 64)
    monkeypatch.setattr(safetensors, "_write", lambda file, data: (sizes.append(len(data)), write(file, data)))
    write_safetensors(tmp_path / "pieces", tensors)
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()
    assert len(sizes) > 5 and set(sizes[:-1]) == {64}
    assert bytes(SafetensorsFile(tmp_path / "pieces").array("t2")) == bytes(range(200))


def test_config_survives_json(folder: Path) -> None:
    config = ModelConfig.from_folder(folder)
    assert config.eos_ids == (2, 3) and config.bos_id == 1
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 9]}')
    assert ModelConfig.from_folder(folder).eos_ids == (2, 3, 9)


def test_parameter_count_matches_the_tensors() -> None:
    for family in ("llama", "qwen2", "qwen3", "fulgur"):
        config = tiny_config(family)
        assert config.parameters == sum(t.size for t in random_model(config, 0).values())


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def shard_of(folder: Path, tensor: str) -> Path:
    return folder / json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][tensor]


def test_truncated_safetensors_names_tensor_and_shape(folder: Path) -> None:
    path = folder / "model-00001-of-00002.safetensors"
    last = max(SafetensorsFile(path).entries.items(), key=lambda item: item[1].stop)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(FulgurError, match="truncated") as error:
        load(folder)
    assert (
        path.name in str(error.value) and last[0] in str(error.value) and str(list(last[1].shape)) in str(error.value)
    )


@pytest.mark.parametrize(("size", "message"), [(3, "too short"), (40, "header needs")])
def test_file_cut_in_its_header(folder: Path, size: int, message: str) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(FulgurError, match=message) as error:
        load(folder)
    assert path.name in str(error.value)


def test_not_safetensors(folder: Path) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes((16).to_bytes(8, "little") + b"not json at all!" * 4)
    with pytest.raises(FulgurError, match="header is not JSON"):
        load(folder)


def test_missing_shard(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FulgurError, match=r"model-00002-of-00002.safetensors: this shard is missing"):
        load(folder)


def test_missing_tensor(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    raw = json.loads(index.read_text())
    del raw["weight_map"]["model.layers.1.mlp.up_proj.weight"]
    index.write_text(json.dumps(raw))
    with pytest.raises(FulgurError, match=r"model.layers.1.mlp.up_proj.weight \[96, 64\] is missing"):
        load(folder)


def test_tensor_not_in_the_shard_the_index_names(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    raw = json.loads(index.read_text())
    raw["weight_map"]["model.norm.weight"] = next(
        other for other in set(raw["weight_map"].values()) if other != raw["weight_map"]["model.norm.weight"]
    )
    index.write_text(json.dumps(raw))
    with pytest.raises(FulgurError, match=r"tensor model.norm.weight is missing"):
        load(folder)


def test_wrong_shape(folder: Path) -> None:
    edit_config(folder, intermediate_size=128)
    with pytest.raises(FulgurError, match=r"expected shape \[128, 64\], found \[96, 64\]") as error:
        load(folder)
    name = "model.layers.0.mlp.gate_proj.weight"
    assert name in str(error.value) and shard_of(folder, name).name in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "architecture 'mamba' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, "rope scaling 'longrope'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "has no factor"),
        ({"hidden_size": "64"}, "hidden_size is '64'; it must be an integer"),
        ({"num_key_value_heads": 3}, "cannot share 3"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_unsupported_configs(folder: Path, changes: dict[str, object], message: str) -> None:
    edit_config(folder, **changes)
    with pytest.raises(FulgurError, match=message):
        load(folder)


def test_unsupported_tensor_type(folder: Path) -> None:
    path = shard_of(folder, "model.norm.weight")
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].replace(b'"dtype":"F32"', b'"dtype":"I32"')
    path.write_bytes(raw[:8] + header + raw[8 + length :])
    with pytest.raises(FulgurError, match=r"type I32 is not supported"):
        load(folder)


def test_packed_folder_that_does_not_fit_its_config(tmp_path: Path) -> None:
    save_packed(assemble(RandomSource(tiny_config(), 0), bits=8), tmp_path)
    edit_config(tmp_path, vocab_size=340)
    with pytest.raises(FulgurError, match=r"tensor head: expected U8 \[\d+\], found U8 \[\d+\]"):
        load(tmp_path)
    edit_config(tmp_path, fulgur={"layout": "rows8"})
    with pytest.raises(FulgurError, match="is not supported; expected rows16"):
        load(tmp_path)


def test_no_model_there(tmp_path: Path) -> None:
    with pytest.raises(FulgurError, match="no such model"):
        load(tmp_path / "nothing")
    with pytest.raises(FulgurError, match=r"config.json: no such file"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FulgurError, match="not readable as JSON"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(tiny_config().to_json()))
    with pytest.raises(FulgurError, match=r"neither model.safetensors nor"):
        load(tmp_path)


def test_fallback_of_the_group_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        weights = assemble(RandomSource(tiny_config(), 0), bits=8, group=64)
    assert weights.matrices["layers.0.down"].group == 32 and weights.matrices["layers.0.o"].group == 64
    assert "layers.0.down" in caplog.text
