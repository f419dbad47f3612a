"""Fetching a model from a hub: every file of one revision, resumed where it broke off, checked, then put in place.

A fetch goes into `NAME.part` and is renamed when each file has the size and the checksum that the hub named, so a model
is here whole or not at all. A second try continues from the bytes that are there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from fulgur.errors import FulgurError, UsageError
from fulgur.hub import here
from fulgur.hub.catalogue import Wanted
from fulgur.hub.here import PART, RECORD, root
from fulgur.model import checksums

TRIES = 5  # of a file without a new byte
CHUNK = 1 << 18  # bytes that are written at a time
MARGIN = 1 << 30  # bytes of the disk that stay free
# What a model needs beside its weights. Other formats of the same weights (`original/`, .bin, .pth) are skipped.
_BESIDE = (
    *("config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "vocab.json", "merges.txt"),
    *("*.jinja", "chat_template.json", "*.safetensors.index.json", "LICENSE*", "tekken.json"),
)

Progress = Callable[[int, int], None]  # bytes that are here, bytes in all


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file as the hub describes it; `sha256` for large files, `blob` (git's hash) for the others."""

    name: str
    size: int
    sha256: str | None
    blob: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be fetched."""

    wanted: Wanted
    revision: str
    files: list[RemoteFile]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def folder(self) -> Path:
        return root() / self.wanted.name

    @property
    def part(self) -> Path:
        return root() / (self.wanted.name + PART)


def plan(wanted: Wanted) -> Plan:
    """Ask the hub which files there are; nothing is fetched yet."""
    from huggingface_hub import HfApi

    try:
        with _said(wanted):
            info = HfApi(endpoint=_endpoint()).model_info(wanted.repo, files_metadata=True)
    except FulgurError:
        raise
    except Exception as error:  # the hub library raises what its HTTP client raises
        raise FulgurError(
            f"{_hub()} did not answer for {wanted.repo}: {error}",
            hint="Check the connection (HF_ENDPOINT names another hub), then run the same command again.",
        ) from None
    files = [_remote(sibling) for sibling in info.siblings or []]
    chosen = choose([file.name for file in files], wanted)
    return Plan(wanted, str(info.sha), [file for file in files if file.name in chosen])


def choose(names: list[str], wanted: Wanted) -> set[str]:
    """The weights, in one format, and the files that go with them."""
    top = [name for name in names if "/" not in name]
    weights = [name for name in top if name.endswith(".safetensors") and not name.startswith("consolidated")]
    gguf = [name for name in names if name.endswith(".gguf") and "mmproj" not in name.lower()]
    if wanted.files:
        gguf = [name for name in gguf if wanted.files.lower() in name.lower()]
        if not gguf:
            have = ", ".join(name for name in names if name.endswith(".gguf")) or "none"
            raise UsageError(
                f"{wanted.repo} has no GGUF file with {wanted.files!r} in its name", hint=f"It has: {have}"
            )
        weights = []
    if weights:
        return {*weights, *(name for name in top if any(fnmatch(name, pattern) for pattern in _BESIDE))}
    if not gguf:
        raise FulgurError(f"{wanted.repo} holds neither safetensors nor GGUF files")
    models = {name.split("-00001-of-")[0] for name in gguf if "-of-" not in name or "-00001-of-" in name}
    if len(models) > 1:
        raise UsageError(
            f"{wanted.repo} holds {len(models)} GGUF models; name one",
            hint=f"For example: fulgur models pull {wanted.repo}:Q4_K_M. It has: {', '.join(sorted(gguf))}",
        )
    return set(gguf)


def fetch(job: Plan, progress: Progress) -> Path:
    """Fetch what is missing, check everything, and put the folder in place."""
    if _is_here(job):
        return job.folder
    _check_room(job)
    with here.writing(job.part):
        return _fetch(job, progress)


def _is_here(job: Plan) -> bool:
    """Whether this revision was fetched before and is undamaged. UsageError when the name belongs to another model."""
    if not job.folder.exists():
        return False
    model = next((model for model in here.fetched() if model.path == job.folder), None)
    if model is None or model.repo != job.wanted.repo:
        whose = "a folder of your own" if model is None else model.repo
        raise UsageError(
            f"{job.folder} already exists: it is {whose}", hint=f"Remove it first: fulgur models rm {job.wanted.name}"
        )
    try:
        return model.revision == job.revision and checksums.check(model.weights, whole=True) == len(job.files)
    except FulgurError:
        return False


def _fetch(job: Plan, progress: Progress) -> Path:
    done = 0
    for file in job.files:
        before = done
        _fetch_file(job, file, lambda have, start=before: progress(start + have, job.size))  # type: ignore[misc]
        done += file.size
        progress(done, job.size)
    shutil.rmtree(job.part / ".cache", ignore_errors=True)  # the hub library's notes on partial files
    files = [{"name": file.name, "size": file.size, "sha256": file.sha256} for file in job.files]
    record = {"repo": job.wanted.repo, "revision": job.revision, "files": files}
    # All files lie in one folder; for GGUF files it may be a subfolder of the repository.
    checksums.write((job.part / job.files[0].name).parent, [Path(file.name).name for file in job.files])
    (job.part / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if job.folder.exists():  # an older revision
        shutil.rmtree(job.folder)
    job.part.rename(job.folder)
    return job.folder


def _check_room(job: Plan) -> None:
    root().mkdir(parents=True, exist_ok=True)
    have = sum(path.stat().st_size for path in job.part.rglob("*") if path.is_file()) if job.part.is_dir() else 0
    need, free = job.size - have, shutil.disk_usage(root()).free
    if need > free - MARGIN:
        raise FulgurError(
            f"{job.wanted.name} needs {need / 1e9:.1f} GB more, and {root()} has {free / 1e9:.1f} GB free",
            hint="Free disk space (`fulgur models rm`), or point FULGUR_HOME at a larger disk.",
        )


def _fetch_file(job: Plan, file: RemoteFile, progress: Callable[[int], None]) -> None:
    """One file, tried again after a broken connection as long as bytes keep coming."""
    path = job.part / file.name
    if _is_whole(path, file):
        return
    path.unlink(missing_ok=True)
    seen, tries = -1, 0
    while True:
        try:
            with _said(job.wanted):
                _download(job, file, progress)
            break
        except FulgurError:
            raise
        except Exception as error:  # the hub library raises what its HTTP client raises
            have = _half(job.part)
            tries = 0 if have > seen else tries + 1
            seen = max(seen, have)
            if tries >= TRIES:
                raise FulgurError(
                    f"{job.wanted.repo}: {file.name} stopped after {have:,} of {file.size:,} bytes: {error}",
                    hint="Run the same command again; it continues from there.",
                ) from None
            time.sleep(min(0.2 * 2**tries, 5.0))
    if not _is_whole(path, file):
        found = path.stat().st_size if path.exists() else 0
        path.unlink(missing_ok=True)
        wrong = f"{found:,} bytes instead of {file.size:,}" if found != file.size else "another checksum"
        raise FulgurError(
            f"{job.wanted.repo}: {file.name} does not match what the hub announced ({wrong}); it was deleted",
            hint="Run the same command again; if it fails again, the hub's copy or a proxy in between is damaged.",
        )


def _download(job: Plan, file: RemoteFile, progress: Callable[[int], None]) -> None:
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.utils.logging import set_verbosity_error
    from tqdm.std import tqdm  # type: ignore[import-untyped]

    set_verbosity_error()  # a broken connection is tried again; the bar shows that
    # A chunk that breaks off is lost. At the library's 10 MB a poor connection would never get anywhere.
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK

    class Counter(tqdm):  # type: ignore[misc]
        """The hub library counts bytes into this; it draws nothing itself."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": False, "file": _Nowhere()})

        def update(self, n: float | None = 1) -> bool | None:
            self.n += n or 0
            progress(min(int(self.n), file.size))
            return None

    hf_hub_download(
        job.wanted.repo,
        file.name,
        revision=job.revision,
        local_dir=job.part,
        endpoint=_endpoint(),
        tqdm_class=Counter,
    )


class _Nowhere:
    def write(self, text: str) -> None: ...
    def flush(self) -> None: ...


def _half(part: Path) -> int:
    """The bytes of the one file that is only partly here."""
    return max((path.stat().st_size for path in (part / ".cache").rglob("*.incomplete")), default=0)


def _is_whole(path: Path, file: RemoteFile) -> bool:
    """Whether the file on disk has the promised size and checksum."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    if file.sha256 is not None:
        return _digest(path, hashlib.sha256()) == file.sha256
    if file.blob is not None:
        return _digest(path, hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)) == file.blob
    return True


def _digest(path: Path, hasher: Any) -> str:
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            hasher.update(chunk)
    return str(hasher.hexdigest())


def _remote(sibling: Any) -> RemoteFile:
    lfs = sibling.lfs
    name = str(sibling.rfilename)
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise FulgurError(f"the hub lists a file outside the model's folder: {name!r}")
    sha256 = getattr(lfs, "sha256", None) if lfs is not None else None
    return RemoteFile(name, int(sibling.size or 0), sha256, None if lfs is not None else sibling.blob_id)


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _hub() -> str:
    return _endpoint() or "huggingface.co"


@contextmanager
def _said(wanted: Wanted) -> Iterator[None]:
    """The hub library's errors in plain words."""
    from huggingface_hub import errors

    where = _hub()
    try:
        yield
    except errors.GatedRepoError:
        raise FulgurError(
            f"{wanted.repo} is gated: you have to accept its licence once",
            hint=f"Accept it on the model's page at {where}, then set HF_TOKEN to a token of that account.",
        ) from None
    except errors.RepositoryNotFoundError:
        raise FulgurError(
            f"{where} has no repository {wanted.repo}, or it is private",
            hint="Check the name; for a private one set HF_TOKEN.",
        ) from None
