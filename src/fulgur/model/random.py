"""Random models of any shape, for tests and benchmarks, and Hugging Face folders of them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.model.bfloat16 import to_bfloat16
from fulgur.model.config import DeltaShape, ModelConfig
from fulgur.model.family import DELTA, FAMILIES, FULL, SLIDING
from fulgur.model.safetensors import write_safetensors
from fulgur.model.tensors import tensor_shapes


def tiny_config(family: str = "fulgur", **changes: Any) -> ModelConfig:
    """A shape small enough to run in numpy within milliseconds, with grouped heads and odd sizes on purpose."""
    usual: dict[str, Any] = {
        "family": family,
        "vocab_size": 301,
        "d_model": 64,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 16,
        "d_ffn": 96,
        "norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_context": 512,
        "tied": family == "fulgur",
    }
    traits = FAMILIES[family]
    if SLIDING in traits.layers:
        usual["window"] = 24
    if traits.layers != (FULL,):
        usual["n_layers"] = max(2, len(traits.layers))
        layers = changes.get("n_layers", usual["n_layers"])
        usual["layer_kinds"] = tuple(traits.layers[i % len(traits.layers)] for i in range(layers))
    if DELTA in traits.layers:
        usual["delta"] = DeltaShape(k_heads=2, v_heads=4, k_dim=32, v_dim=16, taps=4)
    if traits.partial_rotary != 1.0:
        usual |= {"head_dim": 32, "rotary_dim": 16}
    if traits.query_scaling:
        usual["query_scaling"] = (0.1, 32)
    if traits.experts:
        usual |= {"n_experts": 6, "experts_per_token": 2, "d_expert": 32, "norm_topk": traits.norm_topk}
    if traits.shared_expert:
        usual["d_shared"] = 64
    if traits.clamped:
        usual |= {"swiglu_limit": 1.0, "swiglu_alpha": 1.702, "d_ffn": 32}  # low enough to be reached
    return ModelConfig(**{**usual, **changes})


class MemorySource:
    """Tensors that are already in memory, by their Hugging Face names."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, npt.NDArray[np.float32]]) -> None:
        self._config, self._tensors = config, tensors

    @property
    def config(self) -> ModelConfig:
        return self._config

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        return self._tensors[name]

    def rows(self, name: str, index: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        return self.tensor(name)[index]

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        return self.tensor(name).reshape(-1)

    def native(self, name: str) -> tuple[int, int] | None:
        return None

    def quantised(
        self, name: str, index: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
        raise NotImplementedError(f"{name}: these tensors are floats")


class RandomSource(MemorySource):
    """Random tensors, generated one at a time: the same seed and name give the same values, in any order."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__(config, {})
        self._seed = seed
        self._shapes = tensor_shapes(config)
        self._last: tuple[str, npt.NDArray[np.float32]] | None = None

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """Matrices keep the scale of their input; norms are near 1, biases near 0."""
        if self._last is None or self._last[0] != name:
            shape = self._shapes[name]
            rng = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
            value = rng.standard_normal(shape, np.float32)
            if len(shape) > 1:
                value *= np.float32(shape[-1] ** -0.5)
            else:
                value = self._centre(name) + np.float32(0.1) * value
            self._last = (name, value)
        return self._last[1]

    def _centre(self, name: str) -> np.float32:
        if name.endswith("A_log"):
            return np.float32(-3.0)  # a state that remembers some dozens of tokens
        offset = self._config.traits.norm_offset if not name.endswith("linear_attn.norm.weight") else 0.0
        return np.float32(0.0 if name.endswith("bias") else 1.0 - offset)


def random_model(config: ModelConfig, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Every tensor of the model, by its Hugging Face name."""
    source = RandomSource(config, seed)
    return {name: source.tensor(name) for name in tensor_shapes(config)}


def write_hf_folder(
    folder: Path,
    config: ModelConfig,
    tensors: Mapping[str, npt.NDArray[np.float32]],
    *,
    dtype: str = "F32",
    shards: int = 1,
) -> None:
    """Write `config.json` and the tensors as F32, F16 or BF16, in one file or several with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_json(), indent=2) + "\n", encoding="utf-8")
    stored = {name: (dtype, _narrow(value, dtype)) for name, value in hf_tensors(config, tensors).items()}
    if shards == 1:
        write_safetensors(folder / "model.safetensors", stored, {"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    names = list(stored)
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = names[i::shards]
        write_safetensors(folder / file, {name: stored[name] for name in part}, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(a.nbytes for _, a in stored.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def hf_tensors(
    config: ModelConfig, tensors: Mapping[str, npt.NDArray[np.float32]]
) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors as checkpoints store them: those of gpt-oss hold all experts of a layer in one tensor, transposed,
    with gate and up interleaved."""
    if not config.traits.clamped:
        return dict(tensors)
    out = {name: value for name, value in tensors.items() if ".experts." not in name}
    for i in range(config.n_layers):
        prefix = f"model.layers.{i}.mlp.experts."
        for kind in ("weight", "bias"):
            gate, up, down = (
                np.stack([tensors[f"{prefix}{e}.{short}_proj.{kind}"] for e in range(config.n_experts)])
                for short in ("gate", "up", "down")
            )
            both = np.stack((gate, up), axis=2).reshape(config.n_experts, 2 * config.d_expert, *gate.shape[2:])
            suffix = "" if kind == "weight" else "_bias"
            for name, value in (("gate_up_proj", both), ("down_proj", down)):
                out[prefix + name + suffix] = np.ascontiguousarray(value.swapaxes(1, -1) if value.ndim == 3 else value)
    return out


def _narrow(value: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[np.float32 | np.float16 | np.uint16]:
    if dtype == "BF16":
        return to_bfloat16(value)
    if dtype == "F16":
        return value.astype(np.float16)
    if dtype == "F32":
        return value
    raise FulgurError(f"{dtype} cannot be written, only F32, F16 and BF16")
