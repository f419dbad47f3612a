"""A content-addressed store of file contents before they changed, outside the workspace and never overwritten."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
from pathlib import Path

_NAME = re.compile(r"[0-9a-f]{64}")


def content_name(data: bytes) -> str:
    """The name under which a content is stored."""
    return hashlib.sha256(data).hexdigest()


class BlobStore:
    """A folder of contents by hash; equal contents are stored once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, data: bytes) -> str:
        """Store a content atomically and return its name."""
        name = content_name(data)
        path = self.path(name)
        try:
            os.utime(path)  # in use again: must not be collected now
            whole = path.read_bytes() == data
        except FileNotFoundError:
            whole = False
        if not whole:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Unique per thread: subagents, and sessions of one host, may store the same content at the same time.
            temporary = path.with_name(f"{name}.{os.getpid()}-{threading.get_ident()}.tmp")
            temporary.write_bytes(data)
            os.replace(temporary, path)
        return name

    def get(self, name: str) -> bytes:
        """The content; FileNotFoundError when it is not stored (any more), OSError when it is corrupted."""
        data = self.path(name).read_bytes()
        if content_name(data) != name:
            raise OSError(errno.EIO, "its stored content is damaged")
        return data

    def path(self, name: str) -> Path:
        """The path of a content, if it is stored."""
        if not _NAME.fullmatch(name):
            raise FileNotFoundError(errno.ENOENT, "not a valid content name", name)
        return self.folder / name[:2] / name[2:]
