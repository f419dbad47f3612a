"""The corpus: installed packages with a permissive licence, the standard library, and the archive.

    python -m lab.train corpus --archive corpus.jsonl.xz --out RUN/corpus
    python -m lab.train corpus --archive part-03.jsonl.xz --out RUN/corpus --no-installed --part 3 --parts 10
Writes train-NN.jsonl, heldout-00.jsonl, manifest.jsonl.xz (every file with package, licence and hash) and report.json.
Held-out packages are named in sources.txt; a training file that resembles one of theirs is left out.
A corpus may come in parts: the shards of part 3 of 10 are those that pass 3 of `data --parts 10` reads.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import json
import multiprocessing
import os
import sysconfig
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fulgur.errors import FulgurError
from lab.train.dedupe import signature, unique
from lab.train.documents import Document, read_documents, write_documents, write_manifest
from lab.train.filters import clean, keep_path
from lab.train.licences import licence_of, permitted
from lab.train.sources import heldout_names, normalise

INSTALLED_MEGABYTES = 20.0  # at most this much of one installed package
OTHER_LANGUAGES = 0.12  # at most this share of text that is not Python
# Packages whose metadata also lists licences of bundled binaries; this is the licence of their Python sources.
PYTHON_SOURCES = {"torch": "BSD-3-Clause", "numpy": "BSD-3-Clause", "scipy": "BSD-3-Clause", "pandas": "BSD-3-Clause"}


@dataclass(frozen=True)
class Batch:
    """Some files of one installed package."""

    package: str
    version: str
    licence: str
    root: str
    paths: tuple[str, ...]


def installed() -> Iterator[Batch]:
    """Yield every installed distribution whose licence permits it, and the standard library."""
    held = heldout_names()
    for distribution in importlib.metadata.distributions():
        name = normalise(distribution.metadata["Name"] or "")
        licence = PYTHON_SOURCES.get(name) or licence_of(distribution.metadata)  # type: ignore[arg-type]
        if not name or name in held or name == "fulgur" or not permitted(licence):
            continue
        paths = [
            str(path) for path in distribution.files or () if keep_path(str(path)) and not str(path).startswith("..")
        ]
        yield from _batches(name, distribution.version, str(licence), str(distribution.locate_file("")), paths)
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [str(path.relative_to(root)) for path in root.rglob("*.py")]
    kept = [
        path for path in paths if keep_path(path) and not path.startswith(("site-packages", "dist-packages", "config-"))
    ]
    yield from _batches("python", sysconfig.get_python_version(), "PSF-2.0", str(root), kept)


def _batches(name: str, version: str, licence: str, root: str, paths: list[str], size: int = 100) -> Iterator[Batch]:
    for start in range(0, len(paths), size):
        yield Batch(name, version, licence, root, tuple(sorted(paths)[start : start + size]))


def read_batch(batch: Batch) -> list[tuple[Document, np.ndarray]]:
    found = []
    for path in batch.paths:
        try:
            data = (Path(batch.root) / path).read_bytes()
        except OSError:
            continue
        text = clean(data, path)
        if text is not None:
            document = Document(batch.package, batch.version, batch.licence, "train", path, text)
            found.append((document, signature(text)))
    return found


def limit(documents: list[Document]) -> list[Document]:
    """Limit each package to its maximum and other languages to their fraction; hashes decide which files stay."""
    room: dict[str, float] = collections.defaultdict(lambda: INSTALLED_MEGABYTES * 1e6)
    kept = []
    for document in sorted(documents, key=lambda d: d.sha256):
        if len(document.text) <= room[document.package]:
            room[document.package] -= len(document.text)
            kept.append(document)
    python = sum(len(d.text) for d in kept if d.path.endswith((".py", ".pyi")))
    other = OTHER_LANGUAGES * python / (1 - OTHER_LANGUAGES)
    result = []
    for document in kept:
        if not document.path.endswith((".py", ".pyi")):
            if len(document.text) > other:
                continue
            other -= len(document.text)
        result.append(document)
    return result


def parsed(document: Document) -> tuple[bool, np.ndarray]:
    """Whether the document parses (checked only for Python), and its signature."""
    suffix = document.path[document.path.rfind(".") :]
    fine = suffix not in (".py", ".pyi") or clean(document.text.encode(), document.path) is not None
    return fine, signature(document.text)


def build(
    archive: Path | None,
    out: Path,
    *,
    shards: int,
    processes: int,
    use_installed: bool = True,
    part: int = 0,
    parts: int = 1,
) -> dict[str, object]:
    began = time.time()
    out.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        fresh = pool.imap(read_batch, list(installed()) if use_installed else [], chunksize=1)
        archived = list(read_documents(archive)) if archive else []
        archived.sort(key=lambda d: d.split)  # held-out first: a duplicate is then dropped from training
        checked = list(pool.imap(parsed, archived, chunksize=64))
        documents = [document for document, (fine, _) in zip(archived, checked, strict=True) if fine]
        signatures = [found for fine, found in checked if fine]
        for batch in fresh:
            documents += [document for document, _ in batch]
            signatures += [sig for _, sig in batch]
    flags = unique(signatures)
    heldout = [d for d, flag in zip(documents, flags, strict=True) if flag and d.split == "heldout"]
    train = limit([d for d, flag in zip(documents, flags, strict=True) if flag and d.split == "train"])
    if not train:
        raise FulgurError(
            "the corpus has no training files", hint="Give an archive made by `python -m lab.train gather`."
        )
    if heldout or not part:
        write_documents(out / "heldout-00.jsonl", heldout)
    _shared.extend(train)
    with multiprocessing.get_context("fork").Pool(processes) as pool:  # forked, so that the documents are already there
        pool.starmap(_write_shard, [(out, index, shards, part, parts) for index in range(shards)], chunksize=1)
    _shared.clear()
    report = describe(documents, train, heldout) | {"seconds": round(time.time() - began, 1)}
    name = f"-{part:02d}" if parts > 1 else ""
    (out / f"report{name}.json").write_text(json.dumps(report, indent=1) + "\n")  # from here on rows can be made
    write_manifest(out / f"manifest{name}.jsonl.xz", heldout + train)
    return report


_shared: list[Document] = []  # what the forked writers write


def _write_shard(out: Path, index: int, shards: int, part: int, parts: int) -> None:
    """Write whole packages, so that a file's neighbours are at hand."""
    mine = [document for document in _shared if zlib.crc32(document.package.encode()) % shards == index]
    write_documents(out / f"train-{index * parts + part:02d}.jsonl", mine)


def describe(seen: list[Document], train: list[Document], heldout: list[Document]) -> dict[str, object]:
    packages: dict[str, int] = collections.Counter()
    suffixes: dict[str, int] = collections.Counter()
    licences: dict[str, int] = collections.Counter()
    for document in train:
        packages[document.package] += len(document.text)
        suffixes["." + document.path.rsplit(".", 1)[-1]] += len(document.text)
        licences[document.licence] += len(document.text)
    by_size = dict(sorted(packages.items(), key=lambda item: -item[1]))
    return {
        "files_read": len(seen),
        "train_files": len(train),
        "train_megabytes": round(sum(packages.values()) / 1e6, 1),
        "heldout_files": len(heldout),
        "heldout_megabytes": round(sum(len(d.text) for d in heldout) / 1e6, 1),
        "heldout_packages": sorted({d.package for d in heldout}),
        "suffixes": dict(suffixes),
        "licences": dict(licences),
        "packages": by_size,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.train corpus", description="Build the corpus from installed packages and the archive."
    )
    parser.add_argument("--archive", type=Path, default=None, help="what `gather` wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shards", type=int, default=112)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--no-installed", action="store_true", help="use the archive only")
    parser.add_argument("--part", type=int, default=0, help="which part of the corpus this archive is")
    parser.add_argument("--parts", type=int, default=1)
    args = parser.parse_args(argv)
    report = build(
        args.archive,
        args.out,
        shards=args.shards,
        processes=args.processes,
        use_installed=not args.no_installed,
        part=args.part,
        parts=args.parts,
    )
    print(json.dumps({key: value for key, value in report.items() if not isinstance(value, dict)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
