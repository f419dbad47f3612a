"""A session on disk: an append-only file, one JSON object per line. It is the truth; nothing else needs to survive.

A kill can only cut the last line, which then has no newline: readers ignore it, and the next append truncates it.
Prompts and turn ends are forced to disk (fsync) before anything reports them. A damaged line is an error that says
where; `--fork` continues with the lines before it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from fulgur import __version__
from fulgur.agent.session.records import DamagedRecord, Record, decode_record, encode_record, is_cut, is_sealed
from fulgur.errors import FulgurError, UsageError
from fulgur.protocol.session import SessionSummary


class SessionLog:
    """Appends records to one session's file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.stem
        self._file = -1

    @classmethod
    def create(cls, home: Path, workspace: Path, model: str, **more: Any) -> SessionLog:
        """Create a new session; `more` goes into its first record."""
        folder = home / "sessions"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        log = cls(folder / f"{name}.jsonl")
        head = {"id": name, "workspace": str(workspace), "model": model, "version": __version__, "sealed": True, **more}
        log.append("session", durable=True, **head)
        return log

    def append(self, kind: str, /, *, durable: bool = False, **fields: Any) -> None:
        """Write one record; with `durable`, return only when it is on disk."""
        record = {"type": kind, "time": round(time.time(), 3), **fields}
        try:
            if self._file < 0:
                self._open()
            self._write(encode_record(record))
            if durable:
                os.fsync(self._file)
        except OSError as error:
            raise FulgurError(
                f"the session cannot be saved: {self.path}: {error.strerror}",
                hint="Free some space or repair the disk; what is on disk stays as it is.",
            ) from None

    def _write(self, line: bytes) -> None:
        """Write all of it or nothing: truncate what a full disk left half written."""
        size = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, size)
            raise

    def records(self) -> list[Record]:
        """Every whole record, in order."""
        return list(read_records(self.path))

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        new = not self.path.exists()
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if new:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            with contextlib.suppress(OSError):
                os.fsync(folder)  # makes the name durable
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


def read_records(path: Path, *, damaged: Literal["refuse", "stop", "skip"] = "refuse") -> Iterator[Record]:
    """Yield the complete records of a file. At a damaged line, raise an error with its number, stop, or skip it."""
    sealed = False
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            sealed = is_sealed(line) if number == 1 else sealed
            if not line.endswith(b"\n") and is_cut(line):
                return
            try:
                yield decode_record(line.removesuffix(b"\n"), sealed=sealed)
            except DamagedRecord as error:
                if damaged == "stop":
                    return
                if damaged == "refuse":
                    raise damage(path, number, str(error)) from None


def damage(path: Path, number: int, what: str) -> FulgurError:
    """Build the error for a line that cannot be read."""
    hint = "The file is left as it is."
    if number > 1:
        hint = (
            f"`fulgur exec --fork {path.stem}` continues in a copy of the lines before it; the file is left as it is."
        )
    return FulgurError(f"{path}, line {number} is damaged: {what}", hint=hint)


class _Cached(msgspec.Struct, array_like=True):
    stamp: tuple[int, int]
    summary: SessionSummary


def summaries(home: Path, workspace: Path | None = None) -> list[SessionSummary]:
    """Stored sessions (of one workspace), the latest first. An index avoids reading unchanged files again."""
    folder = home / "sessions"
    index = folder / "index.msgpack"
    known: dict[str, _Cached] = {}
    with contextlib.suppress(OSError, ValueError):
        stored = index.read_bytes()
        if zlib.crc32(stored[4:]) == int.from_bytes(stored[:4], "big"):
            known = msgspec.msgpack.decode(stored[4:], type=dict[str, _Cached])
    fresh: dict[str, _Cached] = {}
    for path in folder.glob("*.jsonl"):
        with contextlib.suppress(OSError):
            info = path.stat()
            stamp = (info.st_size, info.st_mtime_ns)
            old = known.get(path.stem)
            fresh[path.stem] = old if old is not None and old.stamp == stamp else _Cached(stamp, _summary(path))
    if fresh != known:
        with contextlib.suppress(OSError):
            temporary = index.with_suffix(f".{os.getpid()}.tmp")
            stored = msgspec.msgpack.encode(fresh)
            temporary.write_bytes(zlib.crc32(stored).to_bytes(4, "big") + stored)
            os.replace(temporary, index)
    found = [
        cached.summary
        for cached in fresh.values()
        if workspace is None
        or (cached.summary.workspace in ("", str(workspace)) and not cached.summary.subagent)  # "": unreadable
    ]
    return sorted(found, key=lambda summary: (summary.updated, summary.session_id), reverse=True)


def _summary(path: Path) -> SessionSummary:
    """Summarise a session for lists; for a damaged one, what can still be read and the damage."""
    found = SessionSummary(
        session_id=path.stem,
        path=str(path),
        workspace="",
        model="",
        started=path.stat().st_mtime,
        updated=path.stat().st_mtime,
        turns=0,
        first_prompt="",
    )
    try:
        for record in read_records(path):
            found = _summed(found, record)
    except FulgurError as error:
        found = replace(found, first_prompt=f"damaged: {error.message}")
    return found


def _summed(so_far: SessionSummary, record: Record) -> SessionSummary:
    match record["type"]:
        case "session":
            return replace(
                so_far,
                workspace=record["workspace"],
                model=record["model"],
                started=record["time"],
                updated=record["time"],
                forked_from=record.get("forked_from", ""),
                subagent=bool(record.get("subagent")),
            )
        case "member" if record["session_id"]:
            members = so_far.members | {record["session_id"]: record["member"]}
            return replace(so_far, updated=record["time"], members=members)
        case "let_go":
            return replace(so_far, undo=False)
        case "turn":
            first = so_far.first_prompt or record["text"][:200]
            return replace(so_far, updated=record["time"], turns=so_far.turns + 1, first_prompt=first)
        case "snapshot":
            return replace(so_far, updated=record["time"], undo=True)
        case "model":
            return replace(so_far, updated=record["time"], model=record["model"])
    return replace(so_far, updated=record["time"])


def find_session(home: Path, name: str, workspace: Path) -> Path:
    """Find a session's file: by id, by a prefix of an id, or `last` (the latest of this workspace)."""
    if name == "last":
        stored = [summary for summary in summaries(home, workspace) if summary.turns]
        if not stored:
            raise UsageError(f"no session to resume in {workspace}", hint="`fulgur` starts one.")
        return Path(stored[0].path)
    stored_ids = {path.stem: path for path in sorted((home / "sessions").glob("*.jsonl"))}
    if name in stored_ids:
        return stored_ids[name]
    matching = [path for stem, path in stored_ids.items() if name and stem.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    raise UsageError(
        f"{len(matching)} sessions start with {name!r}" if matching else f"no session named {name!r}",
        hint="`fulgur exec --list` shows them.",
    )


def fork_session(home: Path, source: Path, before: int | None = None, **more: Any) -> SessionLog:
    """Copy a session up to its end, or to just before the turn `before`; the original is untouched. `more` goes into
    the copy's first record."""
    records = list(read_records(source, damaged="stop"))
    if before is not None:
        ends = (n for n, record in enumerate(records) if record["type"] == "turn" and record["turn"] == before)
        records = records[: next(ends, len(records))]
    if not records or records[0]["type"] != "session":
        raise damage(source, 1, "it does not start with a session's first record")
    head = records[0]
    extra = {
        key: value
        for key, value in head.items()
        if key not in ("type", "time", "id", "version", "sealed", "forked_from", "subagent")
    }
    workspace, model = extra.pop("workspace"), extra.pop("model")
    log = SessionLog.create(home, Path(workspace), model, forked_from=head["id"], **{**extra, **more})
    for record in records[1:]:
        fields = {key: value for key, value in record.items() if key not in ("type", "time")}
        log.append(record["type"], **fields)
    return log


def stored_log(home: Path, workspace: Path, name: str | None, fork: str | None, **more: Any) -> SessionLog | None:
    """The log of a session to resume (`name`) or of a new fork (`fork`, with `more` in its first record), or None."""
    if fork is not None:
        return fork_session(home, find_session(home, fork, workspace), **more)
    return SessionLog(find_session(home, name, workspace)) if name is not None else None
