"""The output of `registry` -> archives small enough to carry, each with whole packages, without near-duplicates.

    python -m lab.train shards --round ROUND… --heldout HELD… --forbid HumanEval.jsonl.gz --out SHARDS --mebibytes 12.5

Of files that resemble each other the first stays; held-out packages come first, so the training file is dropped.
Packages of earlier rounds may be given with them. Tests, documentation, tables and files with a line of the forbidden
problems are left out. Some held-out files travel in the first archive: the run is measured on them.
Writes part-NN.jsonl.xz, manifest.jsonl.xz and packages.txt.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import lzma
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from lab.train.dedupe import signature, unique
from lab.train.documents import Document, read_documents, write_manifest
from lab.train.filters import is_data, is_source
from lab.train.registry import heldout
from lab.train.sources import heldout_names

TELLING = 40  # minimum length of a forbidden problem's line to search for
MOST_OF_A_PACKAGE, MOST_HELD_OUT = 1.2e6, 4e6  # characters
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 2, "dict_size": 64 << 20, "lc": 4, "lp": 0, "pb": 0}]


def forbidden_lines(path: Path | None) -> frozenset[str]:
    """Lines of the evaluation's problems, which no training file may contain."""
    if path is None:
        return frozenset()
    with gzip.open(path, "rt", encoding="utf-8") as problems:
        texts = [json.loads(line) for line in problems if line.strip()]
    lines = (line.strip() for one in texts for line in (one["prompt"] + one["canonical_solution"]).splitlines())
    return frozenset(line for line in lines if len(line) >= TELLING and not line.startswith(("from ", "import ")))


def read_round(folders: Iterable[Path]) -> Iterator[Document]:
    for folder in folders:
        for shard in sorted(folder.glob("*.jsonl")):
            yield from read_documents(shard)


def fresh(folders: list[Path], held: list[Path], forbidden: frozenset[str]) -> list[Document]:
    """The training documents of a round that resemble neither each other nor a held-out one."""
    apart = set(heldout()) | heldout_names()
    documents: list[Document] = []
    seen: set[str] = set()
    for document in read_round(folders):
        if document.package in apart or document.sha256 in seen:
            continue
        seen.add(document.sha256)
        if not is_source(document.path) or is_data(document.text):
            continue
        if forbidden.isdisjoint(line.strip() for line in document.text.splitlines()):
            documents.append(document)
    kept_back = [signature(document.text) for document in read_round(held)]
    flags = unique(itertools.chain(kept_back, (signature(document.text) for document in documents)))
    return [d for d, flag in zip(documents, flags[len(kept_back) :], strict=True) if flag]


def in_packages(documents: list[Document], seed: int) -> list[list[Document]]:
    """Group the files by package, the packages in a random order; hashes decide which files of a large one stay."""
    packages: dict[str, list[Document]] = defaultdict(list)
    room: dict[str, float] = defaultdict(lambda: MOST_OF_A_PACKAGE)
    for document in sorted(documents, key=lambda d: d.sha256):
        if len(document.text) <= room[document.package]:
            room[document.package] -= len(document.text)
            packages[document.package].append(document)
    order = [sorted(packages[name], key=lambda d: d.path) for name in sorted(packages)]
    random.Random(seed).shuffle(order)
    return order


def some_held_out(folders: list[Path]) -> list[Document]:
    """Held-out files from all packages, as many as a run needs to measure itself."""
    found = [d for d in read_round(folders) if d.split == "heldout"]
    room, chosen = MOST_HELD_OUT, []
    for document in sorted(found, key=lambda d: d.sha256):
        if len(document.text) <= room and is_source(document.path) and not is_data(document.text):
            room -= len(document.text)
            chosen.append(document)
    return chosen


def write_parts(packages: list[list[Document]], out: Path, most: int) -> int:
    """Write archives of at most this many bytes. What the compressor still buffers is estimated, so the last package
    may move."""
    out.mkdir(parents=True, exist_ok=True)
    number, ratio = 0, 6.0
    block: list[bytes] = []
    for package in [*packages, []]:
        lines = [(json.dumps(asdict(d), ensure_ascii=False) + "\n").encode() for d in package]
        if block and (not package or sum(map(len, block)) + sum(map(len, lines)) > most * ratio):
            raw = b"".join(block)
            data = lzma.compress(raw, format=lzma.FORMAT_XZ, filters=_FILTERS)
            ratio = 0.985 * len(raw) / len(data)
            partial = out / "partial"
            partial.write_bytes(data)
            partial.replace(out / f"part-{number:02d}.jsonl.xz")
            print(f"part {number}: {len(raw) / 1e6:.1f} MB in {len(data) / 1e6:.2f} MB", flush=True)
            number, block = number + 1, []
        block += lines
    return number


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.train shards", description="Split a round into archives small enough to transfer."
    )
    parser.add_argument("--round", type=Path, nargs="+", required=True, help="the folders that `registry` wrote")
    parser.add_argument("--heldout", type=Path, nargs="*", default=[], help="folders of held-out or earlier packages")
    parser.add_argument("--forbid", type=Path, help="problems (JSON lines, gzip) whose lines may not be trained on")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mebibytes", type=float, default=12.5, help="size of one archive")
    parser.add_argument("--seed", type=int, default=4)
    args = parser.parse_args(argv)
    packages = in_packages(fresh(args.round, args.heldout, forbidden_lines(args.forbid)), args.seed)
    documents = [document for package in packages for document in package]
    print(f"{len(documents)} files of {len(packages)} packages, {sum(len(d.text) for d in documents) / 1e6:.0f} MB")
    args.out.mkdir(parents=True, exist_ok=True)
    listed = sorted({(d.package, d.version, d.licence) for d in documents})
    (args.out / "packages.txt").write_text(
        "".join(f"{name} {version} {licence}\n" for name, version, licence in listed)
    )
    write_parts([some_held_out(args.heldout), *packages], args.out, int(args.mebibytes * 2**20))
    write_manifest(args.out / "manifest.jsonl.xz", documents)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
