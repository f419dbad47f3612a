"""Usage that the database does not have yet, in a file, so that it outlives the server's process.

Every server locks a file of its own. A server that starts takes over the files of servers that are gone. An answer may
be committed twice that way, but the store counts it once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import msgspec

from fulgur.server.store.base import Answer
from fulgur.workspace import folders

MOST_BYTES = 1 << 20  # of a file, before it is rewritten without the answers that were paid

log = logging.getLogger("fulgur.server")


class Line(msgspec.Struct, omit_defaults=True):
    """An answer that is owed, or the id of one that no longer is."""

    owed: Answer | None = None
    paid: str = ""


_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(Line).decode


def folder_of(url: str) -> Path:
    """Where the servers of this machine keep what they owe to a database (or a file), under whatever login."""
    parts = urlsplit(url)
    name = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return folders.home() / "owed" / hashlib.sha256(name.encode()).hexdigest()[:16]


class Owed:
    """The file of one server. A failed write is only logged: the answer goes on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._size = 0
        self._owed: dict[str, Answer] = {}

    def take_up(self) -> list[Answer]:
        """Take over, and return, what servers that are gone still owed."""
        found: dict[str, Answer] = {}
        for path in sorted(self._folder.glob("*.jsonl")):
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its server lives
                left = _read(file, path)
                for answer in left.values():
                    self._write(Line(answer))
                self._owed |= left
                found |= left
                path.unlink(missing_ok=True)
        return list(found.values())

    def add(self, answer: Answer) -> None:
        self._owed[answer.id] = answer
        try:
            self._write(Line(answer))
        except OSError as error:
            log.warning("usage that the database lacks is only in memory: cannot write %s: %s", self._folder, error)

    def paid(self, answer_id: str) -> None:
        """The answer is in the store: strike it off."""
        if self._owed.pop(answer_id, None) is None or self._file is None:
            return
        with contextlib.suppress(OSError):  # then it is committed twice, and counts once
            if not self._owed:
                self._file.truncate(0)
                self._size = 0
            elif self._size > MOST_BYTES:
                self._write_anew(self._file)
            else:
                self._write(Line(paid=answer_id))

    def close(self) -> None:
        """Close the file, and delete it unless something is owed."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                if not os.fstat(self._file.fileno()).st_size:
                    Path(self._file.name).with_suffix(".jsonl").unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def _write(self, line: Line) -> None:
        """Write unbuffered: the kernel has the line when this returns, so a killed process loses nothing."""
        if self._file is None:
            self._file = self._make()
        self._size += self._file.write(_encode(line) + b"\n")

    def _write_anew(self, old: IO[bytes]) -> None:
        """Rewrite the file; the old one stays until the new one is complete."""
        self._file, self._size = self._make(), 0
        for answer in self._owed.values():
            self._write(Line(answer))
        Path(old.name).with_suffix(".jsonl").unlink(missing_ok=True)
        old.close()

    def _make(self) -> IO[bytes]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"{secrets.token_hex(8)}.new"
        file = path.open("ab", buffering=0)
        fcntl.flock(file, fcntl.LOCK_EX)
        path.rename(path.with_suffix(".jsonl"))  # nobody finds it before it is locked
        return file


def _read(file: IO[bytes], path: Path) -> dict[str, Answer]:
    left: dict[str, Answer] = {}
    for data in file.read().splitlines():
        try:
            line = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):  # half a line: its server was killed while it wrote
            log.warning("skipped an unreadable line of %s", path)
            continue
        if line.owed is not None:
            left[line.owed.id] = line.owed
        else:
            left.pop(line.paid, None)
    return left
