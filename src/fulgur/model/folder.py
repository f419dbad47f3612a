"""A Hugging Face folder as a source of tensors: `config.json` and one or several safetensors files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.model.config import ModelConfig, read_json
from fulgur.model.safetensors import SafetensorsFile, to_float32
from fulgur.model.tensors import tensor_shapes


class FolderSource:
    """Tensors stay in the memory map; rows are widened to float32 when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._config = ModelConfig.from_folder(self.folder)
        self._files = self._open()
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
                f"{self.folder}: neither model.safetensors nor model.safetensors.index.json is there",
                hint="Give a model folder (config.json + safetensors) or a .gguf file.",
            )
        file = SafetensorsFile(single)
        return dict.fromkeys(file.entries, file)

    def _open_shards(self, index: Path) -> dict[str, SafetensorsFile]:
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise FulgurError(f"{index}: no weight_map")
        shards: dict[str, SafetensorsFile] = {}
        files: dict[str, SafetensorsFile] = {}
        for name, shard in weight_map.items():
            if shard not in shards:
                path = self.folder / shard
                if not path.exists():
                    missing = sum(1 for other in weight_map.values() if other == shard)
                    raise FulgurError(
                        f"{path}: this shard is missing; {index.name} places {missing} tensors in it, {name} first",
                        hint="Download the whole folder again.",
                    )
                shards[shard] = SafetensorsFile(path)
            if name not in shards[shard].entries:
                raise FulgurError(f"{shards[shard].path}: tensor {name} is missing, {index.name} places it here")
            files[name] = shards[shard]
        return files

    def _check_shapes(self) -> None:
        for name, expected in tensor_shapes(self._config).items():
            file = self._files.get(name)
            if file is None:
                raise FulgurError(f"{self.folder}: tensor {name} {list(expected)} is missing")
            found = file.entries[name].shape
            if found != expected:
                raise FulgurError(f"{file.path}: tensor {name}: expected shape {list(expected)}, found {list(found)}")

    def rows(self, name: str, index: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        file = self._files[name]
        return to_float32(file.array(name)[index], file.entries[name].dtype)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        file = self._files[name]
        return to_float32(file.array(name), file.entries[name].dtype)

    def has(self, name: str) -> bool:
        return name in self._files

    def raw(self, name: str) -> tuple[memoryview, str, tuple[int, ...]]:
        """The stored bytes of a tensor, its type and shape; types that only a GPU reads too (fp8)."""
        file = self._files[name]
        entry = file.entries[name]
        return file.view(entry), entry.dtype, entry.shape

    def native(self, name: str) -> tuple[int, int] | None:
        return None

    def quantised(
        self, name: str, index: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
        raise NotImplementedError(f"{name}: safetensors hold floats")
