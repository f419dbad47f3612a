"""One file of the corpus, and how a set of them is stored: one JSON object per line."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class Document:
    package: str
    version: str
    licence: str
    split: str  # "train" or "heldout"
    path: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


# A large window finds repeats across packages; lc/pb are set for text.
_XZ = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 128 << 20, "lc": 4, "lp": 0, "pb": 0, "nice_len": 273}]


def _open(path: Path, mode: str, compressed: bool) -> IO[str]:
    if compressed:
        return lzma.open(path, mode, filters=_XZ if mode == "wt" else None, encoding="utf-8")  # type: ignore[return-value]
    return path.open(mode, encoding="utf-8")  # type: ignore[return-value]


def write_documents(path: Path, documents: Iterable[Document]) -> None:
    """Write JSON lines, compressed if the name ends in .xz; the file appears complete or not at all."""
    partial = path.with_name(path.name + ".partial")
    with _open(partial, "wt", path.suffix == ".xz") as out:
        for document in documents:
            out.write(json.dumps(asdict(document), ensure_ascii=False) + "\n")
    partial.replace(path)


def read_documents(path: Path) -> Iterator[Document]:
    with _open(path, "rt", path.suffix == ".xz") as lines:
        for line in lines:
            yield Document(**json.loads(line))


def write_manifest(path: Path, documents: Iterable[Document]) -> None:
    """Record every file used: package, version, licence, split, path, hash, size."""
    with lzma.open(path, "wt", preset=6, encoding="utf-8") as out:
        for document in documents:
            row = asdict(document) | {"sha256": document.sha256, "bytes": len(document.text.encode())}
            del row["text"]
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
