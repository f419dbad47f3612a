"""A Hugging Face folder as a source of tensors: `config.json` and one or several safetensors files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.model.config import ModelConfig, read_json
from fulgur.model.config_json import with_draft_head
from fulgur.model.safetensors import SafetensorsFile
from fulgur.model.stored import Matrix, Tensors, View
from fulgur.model.tensors import MTP, tensor_shapes

_PREFIXES = ("model.language_model.", "language_model.model.")
_EXPERT = re.compile(r"(.*\.mlp\.experts\.)(\d+)\.(gate|up|down)_proj\.(weight|bias)")


class FolderSource:
    """Tensors stay in the memory map; rows are converted to float32 on request."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._config = ModelConfig.from_folder(self.folder)
        self._files = self._open()
        self._config = with_draft_head(self._config, "mtp.fc.weight" in self._files)
        quantisation = read_json(self.folder / "config.json").get("quantization_config") or {}
        self._tensors = Tensors(self._files, quantisation)
        # If a model has a vision tower, the tensors of its text model begin with one of these.
        self._prefix = next((p for p in _PREFIXES if p + "embed_tokens.weight" in self._files), "")
        self._opened: dict[str, Matrix] = {}
        self._check_shapes()

    @property
    def config(self) -> ModelConfig:
        return self._config

    def _open(self) -> dict[str, SafetensorsFile]:
        """Tensor name to the file that holds it."""
        index = self.folder / "model.safetensors.index.json"
        single = self.folder / "model.safetensors"
        if index.exists():
            return self._open_shards(index)
        if not single.exists():
            raise FulgurError(
                f"{self.folder}: it has neither model.safetensors nor model.safetensors.index.json",
                hint="Give a model folder (config.json + safetensors) or a .gguf file.",
            )
        file = SafetensorsFile(single)
        return dict.fromkeys(file.entries, file)

    def _open_shards(self, index: Path) -> dict[str, SafetensorsFile]:
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise FulgurError(f"{index}: it has no weight_map")
        shards: dict[str, SafetensorsFile] = {}
        files: dict[str, SafetensorsFile] = {}
        for name, shard in weight_map.items():
            if shard not in shards:
                path = self.folder / shard
                if not path.exists():
                    missing = sum(1 for other in weight_map.values() if other == shard)
                    raise FulgurError(
                        f"{path}: this shard is missing; {index.name} lists {missing} tensors in it, first {name}",
                        hint="Download the whole folder again.",
                    )
                shards[shard] = SafetensorsFile(path)
            if name not in shards[shard].entries:
                raise FulgurError(
                    f"{shards[shard].path}: tensor {name} is missing, although {index.name} lists it here"
                )
            files[name] = shards[shard]
        return files

    def _check_shapes(self) -> None:
        for name, expected in tensor_shapes(self._config).items():
            found = self._matrix(name).shape
            if found != expected:
                where = self._files[name].path if name in self._files else self.folder
                raise FulgurError(f"{where}: tensor {name}: expected shape {list(expected)}, found {list(found)}")

    def _matrix(self, name: str) -> Matrix:
        """A tensor by the name that `tensor_shapes` gives it, wherever and however it is stored."""
        found = self._opened.get(name)
        if found is None:
            found = self._open_matrix(name)
            if found is None:
                shape = list(tensor_shapes(self._config).get(name, ()))
                raise FulgurError(f"{self.folder}: tensor {name} {shape} is missing")
            self._opened[name] = found
        return found

    def _open_matrix(self, name: str) -> Matrix | None:
        stored = self._stored_name(name)
        found = self._tensors.open(stored)
        match = _EXPERT.fullmatch(stored)
        if found is not None or match is None:
            return found
        prefix, expert, short, kind = match[1], int(match[2]), match[3], match[4]
        fused = prefix + ("down_proj" if short == "down" else "gate_up_proj") + ("_bias" if kind == "bias" else "")
        rows = slice(None)
        if short != "down" and self._config.traits.clamped:  # gpt-oss: gate and up rows alternate
            rows = slice(0 if short == "gate" else 1, None, 2)
        elif short != "down":
            width = self._config.d_expert
            rows = slice(0, width) if short == "gate" else slice(width, None)
        # gpt-oss stores unquantised experts transposed, but not its 4-bit ones.
        transposed = kind == "weight" and self._config.traits.clamped and fused in self._tensors
        return self._tensors.open(fused, View(expert, rows, transposed))

    def _stored_name(self, name: str) -> str:
        if self._prefix and name not in self._tensors and not name.startswith(MTP):
            return name.replace("model.", self._prefix, 1) if name.startswith("model.") else "language_model." + name
        return name

    def rows(self, name: str, index: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        return self._matrix(name).rows(index)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        matrix = self._matrix(name)
        return matrix.rows(np.arange(matrix.shape[0])).reshape(-1)

    def stored(self, name: str) -> Matrix:
        """A tensor as the file holds it; the GPU engine keeps its form where it can."""
        return self._matrix(name)

    def has(self, name: str) -> bool:
        return name in self._files

    def raw(self, name: str) -> tuple[memoryview, str, tuple[int, ...]]:
        """The stored bytes of a tensor of any type, its type and shape."""
        file = self._files[name]
        entry = file.entries[name]
        return file.view(entry), entry.dtype, entry.shape

    def native(self, name: str) -> tuple[int, int] | None:
        return self._matrix(name).native

    def quantised(
        self, name: str, index: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
        return self._matrix(name).quantised(index)
