"""A GGUF file, or the first of its parts, as a source of tensors in Hugging Face's names and order.

`gguf_names.py` says where a tensor is stored; `gguf_config.py` reads the metadata.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.model.config import ModelConfig, naming
from fulgur.model.gguf_blocks import NATIVE, TO_FLOAT, to_quantised
from fulgur.model.gguf_config import config_of
from fulgur.model.gguf_file import GgufFile
from fulgur.model.gguf_names import Place, place_of, qkvz_places
from fulgur.model.tensors import delta_of, tensor_shapes


class GgufSource:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = GgufFile(path)
        with naming(path):
            self._config = config_of(self.file)
        self._check()

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def tokenizer_metadata(self) -> dict[str, Any]:
        """The keys that describe the vocabulary: tokenizer.* (tokens, merges, types, special ids, chat template)."""
        return {key: value for key, value in self.file.metadata.items() if key.startswith("tokenizer.")}

    def _check(self) -> None:
        for name, expected in tensor_shapes(self._config).items():
            for stored, size in self._stored_sizes(name, math.prod(expected)):
                tensor = self.file.tensors.get(stored)
                if tensor is None:
                    raise FulgurError(f"{self.path}: tensor {stored} {list(expected)} is missing")
                if math.prod(tensor.shape) != size or tensor.shape[-1] != expected[-1]:
                    raise FulgurError(
                        f"{self.path}: tensor {stored}: expected shape {list(expected)}, found {list(tensor.shape)}"
                    )
                if tensor.type.name not in TO_FLOAT:
                    raise FulgurError(
                        f"{self.path}: tensor {stored} {list(tensor.shape)}: quantisation type {tensor.type.name} is "
                        "not supported",
                        hint=f"Supported: {', '.join(TO_FLOAT)}.",
                    )

    def _stored_sizes(self, name: str, size: int) -> list[tuple[str, int]]:
        """The stored tensors that hold one of ours, and how many values each must have."""
        if name.endswith("in_proj_qkvz.weight"):
            qkv, z, _ = qkvz_places(name, self._config)
            channels = delta_of(self._config).channels * self._config.d_model
            return [(qkv.name, channels), (z.name, size - channels)]
        place = place_of(name, self._config)
        return [(place.name, size * self._config.n_experts if ".experts." in name else size)]

    def rows(self, name: str, index: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        if name.endswith("in_proj_qkvz.weight"):
            return self._grouped_rows(name, np.asarray(index))
        place = place_of(name, self._config)
        kind, blocks = self._blocks(place, index)
        values = TO_FLOAT[kind](blocks).reshape(len(index), -1)
        return values if place.columns is None else values[:, place.columns]

    def _grouped_rows(self, name: str, index: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        qkv, z, order = qkvz_places(name, self._config)
        at, channels = order[index], delta_of(self._config).channels
        out = np.empty((len(index), self._config.d_model), np.float32)
        for place, here, first in ((qkv, at < channels, 0), (z, at >= channels, channels)):
            kind, blocks = self._blocks(place, at[here] - first)
            out[here] = TO_FLOAT[kind](blocks).reshape(int(here.sum()), -1)
        return out

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        place = place_of(name, self._config)
        shape = tensor_shapes(self._config)[name]
        tensor = self.file.tensors[place.name]
        flat = TO_FLOAT[tensor.type.name](self.file.blocks(place.name).reshape(-1, tensor.type.size)).reshape(-1)
        rows = flat.reshape(-1, math.prod(shape[1:]))
        value = rows[place.rows(np.arange(shape[0]))].reshape(-1) + np.float32(place.add)
        return np.log(-value) if place.decay else value

    def native(self, name: str) -> tuple[int, int] | None:
        if name.endswith("in_proj_qkvz.weight"):
            return None
        place = place_of(name, self._config)
        return None if place.columns is not None else NATIVE.get(self.file.tensors[place.name].type.name)

    def quantised(
        self, name: str, index: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
        q, scale = to_quantised(*self._blocks(place_of(name, self._config), index))
        return q.reshape(len(index), -1), scale.reshape(len(index), -1)

    def _blocks(self, place: Place, index: npt.NDArray[np.integer]) -> tuple[str, npt.NDArray[np.uint8]]:
        tensor = self.file.tensors[place.name]
        picked = self.file.blocks(place.name)[place.rows(index)]
        return tensor.type.name, picked.reshape(-1, tensor.type.size)
