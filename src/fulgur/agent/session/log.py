"""A session on disk: one JSON object a line, only ever appended. The file is the truth; nothing else needs to survive.

A line that was cut by a kill is the last one and has no newline: it is left out when reading and cut off before the
next append. What a person typed, and a turn's end, are forced to disk (fsync) before anything says they are there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fulgur import __version__
from fulgur.errors import FulgurError, UsageError
from fulgur.protocol.agent import SessionSummary

Record = dict[str, Any]


class SessionLog:
    """Appends records to one session's file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.stem
        self._file = -1

    @classmethod
    def create(cls, home: Path, workspace: Path, model: str, **more: Any) -> SessionLog:
        """A new session; `more` goes into its first record."""
        folder = home / "sessions"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        log = cls(folder / f"{name}.jsonl")
        head = {"id": name, "workspace": str(workspace), "model": model, "version": __version__, **more}
        log.append("session", durable=True, **head)
        return log

    def append(self, kind: str, /, *, durable: bool = False, **fields: Any) -> None:
        """Write one record in one call; `durable` returns only when it is on disk."""
        if self._file < 0:
            self._open()
        record = {"type": kind, "time": round(time.time(), 3), **fields}
        line = msgspec.json.encode(record) + b"\n"
        while line:
            line = line[os.write(self._file, line) :]
        if durable:
            os.fsync(self._file)

    def records(self) -> list[Record]:
        """Every whole record, in order."""
        return list(read_records(self.path))

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        new = not self.path.exists()
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if new:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            with contextlib.suppress(OSError):
                os.fsync(folder)  # the name itself
            os.close(folder)
        else:
            size = os.fstat(self._file).st_size
            whole = _whole_size(self._file, size)
            if whole < size:
                os.ftruncate(self._file, whole)


def _whole_size(descriptor: int, size: int) -> int:
    """Where the last whole line ends."""
    end = size
    while end > 0:
        start = max(0, end - 65536)
        block = os.pread(descriptor, end - start, start)
        cut = block.rfind(b"\n")
        if cut >= 0:
            return start + cut + 1
        end = start
    return 0


def read_records(path: Path) -> Iterator[Record]:
    """The whole records of a file; a damaged line in the middle is an error with its number."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = msgspec.json.decode(line)
            except msgspec.DecodeError:
                raise FulgurError(f"{path}, line {number} is damaged") from None
            yield record


class _Cached(msgspec.Struct, array_like=True):
    stamp: tuple[int, int]
    summary: SessionSummary


def summaries(home: Path, workspace: Path | None = None) -> list[SessionSummary]:
    """Stored sessions (of one workspace), the latest first. An index saves reading files that did not change."""
    folder = home / "sessions"
    index = folder / "index.msgpack"
    known: dict[str, _Cached] = {}
    with contextlib.suppress(OSError, msgspec.DecodeError):
        known = msgspec.msgpack.decode(index.read_bytes(), type=dict[str, _Cached])
    fresh: dict[str, _Cached] = {}
    for path in folder.glob("*.jsonl"):
        with contextlib.suppress(OSError, FulgurError, StopIteration, KeyError):
            info = path.stat()
            stamp = (info.st_size, info.st_mtime_ns)
            old = known.get(path.stem)
            fresh[path.stem] = old if old is not None and old.stamp == stamp else _Cached(stamp, _summary(path))
    if fresh != known:
        with contextlib.suppress(OSError):
            temporary = index.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_bytes(msgspec.msgpack.encode(fresh))
            os.replace(temporary, index)
    found = [
        cached.summary for cached in fresh.values() if workspace is None or cached.summary.workspace == str(workspace)
    ]
    return sorted(found, key=lambda summary: (summary.updated, summary.session_id), reverse=True)


def _summary(path: Path) -> SessionSummary:
    records = read_records(path)
    head = next(records)
    turns, first, updated, model, undo = 0, "", head["time"], head["model"], True
    for record in records:
        if record["type"] == "let_go":
            undo = False
            continue
        updated = record["time"]
        if record["type"] == "turn":
            turns += 1
            first = first or record["text"]
        elif record["type"] == "snapshot":
            undo = True
        elif record["type"] == "model":
            model = record["model"]
    return SessionSummary(
        session_id=head["id"],
        path=str(path),
        workspace=head["workspace"],
        model=model,
        started=head["time"],
        updated=updated,
        turns=turns,
        first_prompt=first[:200],
        forked_from=head.get("forked_from", ""),
        undo=undo,
    )


def find_session(home: Path, name: str, workspace: Path) -> Path:
    """The file of a session: by id, by the beginning of an id, or `last` (the latest of this workspace)."""
    if name == "last":
        stored = [summary for summary in summaries(home, workspace) if summary.turns]
        if not stored:
            raise UsageError(f"no session to resume in {workspace}")
        return Path(stored[0].path)
    exact = home / "sessions" / f"{name}.jsonl"
    if exact.is_file():
        return exact
    matching = sorted((home / "sessions").glob(f"{name}*.jsonl")) if name and "/" not in name else []
    if len(matching) == 1:
        return matching[0]
    raise UsageError(
        f"{len(matching)} sessions start with {name!r}" if matching else f"no session named {name!r}",
        hint="`fulgur exec --list` shows them.",
    )


def fork_session(home: Path, source: Path) -> SessionLog:
    """A copy that goes its own way from here; the original stays as it is."""
    records = list(read_records(source))
    head = records[0]
    extra = {key: value for key, value in head.items() if key not in ("type", "time", "id", "version", "forked_from")}
    workspace, model = extra.pop("workspace"), extra.pop("model")
    log = SessionLog.create(home, Path(workspace), model, forked_from=head["id"], **extra)
    for record in records[1:]:
        fields = {key: value for key, value in record.items() if key not in ("type", "time")}
        log.append(record["type"], **fields)
    return log


def stored_log(home: Path, workspace: Path, name: str | None, fork: str | None) -> SessionLog | None:
    """The log of a session to resume (`name`) or of a new copy (`fork`); None for neither."""
    if fork is not None:
        return fork_session(home, find_session(home, fork, workspace))
    return SessionLog(find_session(home, name, workspace)) if name is not None else None
