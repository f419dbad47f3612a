"""Source packages of the list -> one compressed archive of clean documents that travels to the training machine.

pip download --no-deps -d PACKAGES NAME==VERSION     # one by one, the names in sources.txt
python -m lab.train gather --packages PACKAGES --out corpus.jsonl.xz
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from fulgur.errors import FulgurError
from lab.train.dedupe import signature, unique
from lab.train.documents import Document, write_documents, write_manifest
from lab.train.filters import clean, keep_path
from lab.train.sources import Source, normalise, read_sources


def find_package(source: Source, folders: list[Path]) -> Path:
    for folder in folders:
        for path in folder.iterdir():
            if source.registry == "pypi" and path.suffix == ".whl":
                name, version = path.name.split("-")[:2]
                if normalise(name) == source.key and version.split("+")[0] == source.version:
                    return path
            elif (
                source.registry == "npm"
                and path.name == f"{source.name.lstrip('@').replace('/', '-')}-{source.version}.tgz"
            ):
                return path
    raise FulgurError(
        f"{source.name} {source.version} is not in {', '.join(map(str, folders))}", hint="download it first"
    )


def members(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                if keep_path(name):
                    yield name, archive.read(name)
    else:
        with tarfile.open(path) as archive:
            for member in sorted(archive.getmembers(), key=lambda m: m.name):
                inner = member.name.removeprefix("package/")
                handle = archive.extractfile(member) if member.isfile() and keep_path(inner) else None
                if handle:
                    yield inner, handle.read()


def take(job: tuple[Source, Path]) -> list[Document]:
    """The clean files of one package, at most its allotted megabytes, chosen by hash if there are more."""
    source, path = job
    found = []
    for name, data in members(path):
        text = clean(data, name)
        if text is not None:
            found.append(Document(source.key, source.version, source.licence, source.split, name, text))
    budget = source.megabytes * 1e6
    chosen = set()
    for document in sorted(found, key=lambda d: d.sha256):
        if len(document.text) <= budget:
            chosen.add(document.path)
            budget -= len(document.text)
    return [document for document in found if document.path in chosen]


def read_packages(sources: list[Source], folders: list[Path], processes: int = 1) -> list[Document]:
    """The clean files of these packages; of near-duplicates the first stays."""
    jobs = [(source, find_package(source, folders)) for source in sources]
    with multiprocessing.Pool(processes) as pool:
        documents = [document for batch in pool.imap(take, jobs, chunksize=4) for document in batch]
        keep = unique(pool.imap(signature, [document.text for document in documents], chunksize=64))
    return [document for document, flag in zip(documents, keep, strict=True) if flag]


def licence_text(path: Path) -> str:
    """The licence files of a wheel; if it has none, what its metadata says."""
    with zipfile.ZipFile(path) as archive:
        inside = [name for name in sorted(archive.namelist()) if ".dist-info/" in name]
        files = [name for name in inside if re.search(r"LICEN[CS]E|COPYING|NOTICE", name.rsplit("/", 1)[-1], re.I)]
        if files:
            return "\n".join(archive.read(name).decode("utf-8", "replace") for name in files)
        metadata = archive.read(next(name for name in inside if name.endswith("/METADATA"))).decode("utf-8", "replace")
    return "\n".join(re.findall(r"(?m)^(?:Author|License|Classifier: License).*$", metadata))


def gather(folders: list[Path], out: Path, processes: int) -> list[Document]:
    # Held-out packages first: a similar training file is then the copy that is dropped.
    documents = read_packages(sorted(read_sources(), key=lambda s: s.split), folders, processes)
    write_manifest(out.with_suffix(".manifest.xz"), documents)
    write_documents(out, documents)
    return documents


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.train gather", description=__doc__.split("\n")[0] if __doc__ else None
    )
    parser.add_argument(
        "--packages", type=Path, nargs="+", required=True, help="folders of downloaded wheels and npm archives"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args(argv)
    documents = gather(args.packages, args.out, args.processes)
    size = sum(len(document.text) for document in documents)
    print(f"{len(documents)} files, {size / 1e6:.1f} MB of text, {args.out.stat().st_size / 2**20:.1f} MiB compressed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
