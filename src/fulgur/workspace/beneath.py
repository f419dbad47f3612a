"""The only module that opens files of a workspace; it never follows a link, as commands may change files concurrently.

Paths are walked by descriptor from the root, so swapping a folder for a link between check and use causes an error and
never leads out of the workspace. Names may be any bytes; `shown` is the form for people and models.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fulgur.errors import FulgurError

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_UNDECODED = re.compile("[\udc80-\udcff]")
_STORED = re.compile("\0([89a-f][0-9a-f])")


@contextlib.contextmanager
def folder(root: Path, path: Path, *, create: bool = False) -> Iterator[int]:
    """Open a descriptor of the folder `path` (absolute, beneath `root`) without following any link."""
    descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.relative_to(root).parts:
            if part == "..":
                raise FulgurError(f"{shown(str(path))} is outside {shown(str(root))}")
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
            below = os.open(part, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def read(root: Path, path: Path, limit: int = -1) -> bytes:
    """The first `limit` bytes of a regular file (-1: all).

    OSError when it cannot be read, FulgurError when it is not a regular file."""
    with _regular(_open(root, path), path) as file:
        return file.read(limit)


def write(root: Path, path: Path, data: bytes) -> None:
    """Write a new file with this content; replaces an existing file or link, and creates its parent folders."""
    with _made(root, path) as file:
        file.write(data)


def copy(root: Path, path: Path, into: Path, target: Path) -> bool:
    """Copy a regular file beneath `root` to `target` beneath `into`, with its mode and times, like `write`.

    False when the file no longer exists, or is a link."""
    try:
        descriptor = _open(root, path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise
    with _regular(descriptor, path) as source, _made(into, target) as file:
        shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        info = os.fstat(source.fileno())
        os.fchmod(file.fileno(), info.st_mode & 0o777)
        os.utime(file.fileno(), ns=(info.st_atime_ns, info.st_mtime_ns))
    return True


def _open(root: Path, path: Path) -> int:
    with folder(root, path.parent) as parent:
        # Non-blocking: if a pipe replaces the file, opening it would wait for a writer forever.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(path.name, flags, dir_fd=parent)


@contextlib.contextmanager
def _regular(descriptor: int, path: Path) -> Iterator[BinaryIO]:
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FulgurError(f"{shown(str(path))} is not a file")
        yield file


@contextlib.contextmanager
def _made(root: Path, path: Path) -> Iterator[BinaryIO]:
    with folder(root, path.parent, create=True) as parent:
        # Create a new file: the existing one may have another hard link outside the workspace.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path.name, flags, 0o666, dir_fd=parent)
    with os.fdopen(descriptor, "wb") as file:
        yield file


def read_if_there(root: Path, path: Path) -> bytes | None:
    """The whole file; None when there is none."""
    try:
        return read(root, path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_inside(root: Path, path: Path, limit: int) -> bytes | None:
    """Like `read`, for a file that may be a link to another one beneath `root`; None when it leads out, or nowhere."""
    try:
        real, top = path.resolve(strict=True), root.resolve()
        return read(top, real, limit) if real.is_relative_to(top) else None
    except (OSError, FulgurError, RuntimeError):
        return None


def shown(name: str) -> str:
    """A file name for people, models and JSON: bytes that are not UTF-8 appear as `\\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def stored(name: str) -> str:
    """A file name as reversible, encodable text: NUL, which no name contains, marks undecodable bytes."""
    return _UNDECODED.sub(lambda match: f"\0{ord(match[0]) - 0xDC00:02x}", name)


def unstored(text: str) -> str:
    """The inverse of `stored`."""
    return _STORED.sub(lambda match: chr(0xDC00 + int(match[1], 16)), text)
