"""Gathers source from the registry: the newest release of each named package whose own metadata permits its use.

    python -m lab.train registry --names popular.txt --out ROUND --megabytes 1200

Packages of sources.txt and of the lists of earlier rounds (round*.txt) are left out, and so are those named in
heldout.txt, which evaluate what is trained on this. Writes ROUND/NNNN.jsonl (documents, 500 packages a file) and
ROUND/packages.txt (what was taken, and why the others were not). When restarted, it continues after the last package
in packages.txt.
"""

from __future__ import annotations

import argparse
import email
import io
import json
import re
import tarfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.train.documents import Document
from lab.train.filters import clean, keep_path
from lab.train.licences import licence_of, permitted
from lab.train.sources import normalise, read_sources

INDEX = "https://pypi.org/pypi/{}/json"
FILES = "https://files.pythonhosted.org/packages/"
HELDOUT = Path(__file__).with_name("heldout.txt")
ROUNDS = "round*.txt"  # beside it: the packages of earlier rounds
LARGEST_FILE = 12_000_000  # bytes per archive
PACKAGE_MEGABYTES = 2.5
AHEAD = 12  # packages to download ahead of the one being read
# Families of packages that one generator writes: a little of each is enough.
FAMILIES = re.compile(
    r"^(azure|google-cloud|types|mypy-boto3|types-aiobotocore|types-boto3|tencentcloud|alibabacloud|aws-cdk|huaweicloud"
    r"|oci|odoo|pulumi|opentelemetry|yandexcloud|msgraph|volcengine|bce|ibm|aliyun|cdk|cdktf|jdcloud|ucloud|stubs"
    r"|pyobjc|llama-index|pyats|genie|vonage|openinference)[-.]"
    r"|(-stubs|-sdk|-api-client|-openapi)$"
)
FAMILY_MEGABYTES = 0.15


@dataclass(frozen=True)
class Release:
    """One downloaded archive, or the reason why there is none."""

    name: str
    version: str = ""
    file: str = ""
    data: bytes = b""
    refused: str = ""


def get(url: str, attempts: int = 3) -> bytes:
    for attempt in range(attempts):
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return bytes(answer.read())
        except OSError as error:
            if attempt + 1 == attempts or getattr(error, "code", 0) == 404:
                raise
            time.sleep(1 + attempt)
    raise AssertionError


def download(name: str) -> Release:
    """Download the newest release: a pure wheel, else the source archive, else the smallest wheel."""
    try:
        found = json.loads(get(INDEX.format(name)))
        files = [f for f in found["urls"] if f["size"] <= LARGEST_FILE and f["filename"].endswith((".whl", ".tar.gz"))]
        if not files:
            return Release(name, refused="no archive of a suitable size")
        best = min(files, key=lambda f: (rank(f["filename"]), f["size"]))
        place = best["url"].rpartition("packages/")[2]  # a mirror may give a URL relative to its own pages
        return Release(name, found["info"]["version"], best["filename"], get(FILES + place))
    except (OSError, ValueError, KeyError) as error:
        return Release(name, refused=f"not downloaded: {error}")


def rank(filename: str) -> int:
    return 0 if filename.endswith("none-any.whl") else 1 if filename.endswith(".tar.gz") else 2


def members(release: Release) -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) of the metadata and of every Python file worth reading."""
    if release.file.endswith(".whl"):
        with zipfile.ZipFile(io.BytesIO(release.data)) as wheel:
            for info in sorted(wheel.infolist(), key=lambda i: i.filename):
                if info.file_size < 200_000 and wanted(info.filename):
                    yield info.filename, wheel.read(info)
        return
    with tarfile.open(fileobj=io.BytesIO(release.data), mode="r:gz") as archive:
        for member in archive:
            path = member.name.split("/", 1)[-1]
            if member.isfile() and member.size < 200_000 and wanted(path):
                handle = archive.extractfile(member)
                if handle:
                    yield path, handle.read()


def wanted(path: str) -> bool:
    return is_metadata(path) or is_licence(path) or (path.endswith(".py") and keep_path(path))


def is_metadata(path: str) -> bool:
    return path == "PKG-INFO" or path.endswith(".dist-info/METADATA")


def is_licence(path: str) -> bool:
    """Whether it is a licence text of the package itself, not of something bundled."""
    place, _, name = path.rpartition("/")
    return bool(re.match(r"LICEN[CS]E|COPYING|NOTICE", name, re.I)) and (not place or ".dist-info" in place)


def licence_text(release: Release) -> str:
    """The licence files of a release; if it has none, what its metadata says about authors and licence."""
    files = [(path, data.decode("utf-8", "replace")) for path, data in members(release) if not path.endswith(".py")]
    texts = [text for path, text in files if is_licence(path)]
    said = [line for path, text in files if is_metadata(path) for line in re.findall(r"(?m)^(?:Author|Licen).*$", text)]
    return "\n".join(texts or said)


def read(release: Release, split: str = "train") -> tuple[list[Document], str]:
    """Return the clean files of a release within its allotted megabytes, and its licence or the reason for none."""
    if release.refused:
        return [], release.refused
    try:
        files = dict(members(release))
    except (OSError, ValueError, zipfile.BadZipFile, tarfile.TarError, EOFError, RuntimeError) as error:
        return [], f"not read: {error}"
    metadata = [data for path, data in files.items() if is_metadata(path)]
    licence = licence_of(email.message_from_bytes(metadata[0])) if metadata else None
    if not permitted(licence):
        return [], f"licence: {licence}"
    room = (FAMILY_MEGABYTES if FAMILIES.search(normalise(release.name)) else PACKAGE_MEGABYTES) * 1e6
    found = []  # `corpus` checks whether they parse, on more cores
    for path, data in files.items():
        text = clean(data, path, parse=False) if path.endswith(".py") and len(data) <= room else None
        if text is not None:
            found.append(
                Document(normalise(release.name), release.version, str(licence), split, path.removeprefix("src/"), text)
            )
            room -= len(data)
    return found, str(licence)


def releases(names: list[str]) -> Iterator[Release]:
    """Yield releases in order, downloading ahead of the reader."""
    with ThreadPoolExecutor(AHEAD) as pool:
        waiting: list[Future[Release]] = []
        for name in names:
            waiting.append(pool.submit(download, name))
            if len(waiting) > AHEAD:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


def gather(names: list[str], out: Path, megabytes: float, split: str = "train") -> float:
    """Read packages in the order of the list until there is enough text; return the megabytes."""
    out.mkdir(parents=True, exist_ok=True)
    record = out / "packages.txt"
    lines = record.read_text().splitlines() if record.exists() else []
    done = {line.split("\t")[0] for line in lines}
    total = sum(float(line.split("\t")[3]) for line in lines)
    for release in releases([name for name in names if name not in done]):
        documents, licence = read(release, split)
        size = sum(len(d.text) for d in documents) / 1e6
        if documents and split == "heldout":  # tasks are made from these files, so the licence goes with them
            (out / f"{normalise(release.name)}.licence").write_text(licence_text(release), encoding="utf-8")
        with (out / f"{len(done) // 500:04d}.jsonl").open("a", encoding="utf-8") as shard:
            for document in documents:
                shard.write(json.dumps(asdict(document), ensure_ascii=False) + "\n")
        with record.open("a", encoding="utf-8") as listing:
            listing.write(f"{release.name}\t{release.version}\t{licence}\t{size:.3f}\n")
        done.add(release.name)
        total += size
        if total >= megabytes:
            break
    return total


def heldout() -> list[str]:
    """Packages that are used only for evaluation."""
    lines = HELDOUT.read_text().splitlines()
    return [normalise(line) for line in lines if line and not line.startswith("#")]


def earlier(folder: Path = HELDOUT.parent) -> set[str]:
    """Packages that an earlier round took from the registry."""
    lines = [line for listed in sorted(folder.glob(ROUNDS)) for line in listed.read_text().splitlines()]
    return {normalise(line.split()[0]) for line in lines if line and not line.startswith("#")}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.train registry", description="Download sources from the registry."
    )
    parser.add_argument(
        "--names", type=Path, help="package names, the most wanted first (default: those of heldout.txt)"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, default=1200)
    args = parser.parse_args(argv)
    if args.names:
        known = {source.key for source in read_sources()} | set(heldout()) | earlier()
        names = [normalise(line) for line in args.names.read_text().split()]
        total = gather([n for n in dict.fromkeys(names) if n not in known], args.out, args.megabytes)
    else:
        total = gather(heldout(), args.out, args.megabytes, "heldout")
    print(f"{total:.0f} MB in {args.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
