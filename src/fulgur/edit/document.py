"""A file on disk, and its text with line feeds only."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from fulgur.errors import UsageError
from fulgur.workspace.textfile import TextFile


@dataclass(frozen=True)
class Document:
    """`name` is the path as the model sees it: relative, with forward slashes."""

    path: Path
    name: str
    data: bytes
    text: str
    fresh: bool = False  # the file does not exist yet

    @classmethod
    def of(cls, path: Path, name: str, data: bytes) -> Document:
        return cls(path, name, data, TextFile.decode(data, str(path)).plain)

    @classmethod
    def open(cls, path: Path) -> Document:
        """Read a file that the user named; its name is relative to the current folder."""
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise UsageError(f"{path} is not a file")
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        real, here = path.resolve(), Path.cwd()
        return cls.of(path, real.relative_to(here).as_posix() if real.is_relative_to(here) else path.name, data)

    @classmethod
    def beneath(cls, root: Path, path: Path) -> Document:
        """Read a file of a project; its name is relative to the project."""
        return cls.of(path, path.relative_to(root.resolve()).as_posix(), path.read_bytes())

    @classmethod
    def new(cls, root: Path, path: Path) -> Document:
        """A file of a project that does not exist yet."""
        return cls(path, path.relative_to(root.resolve()).as_posix(), b"", "", fresh=True)

    def encode(self, text: str) -> bytes:
        """The file's bytes with another text."""
        return TextFile.decode(self.data, str(self.path)).with_plain(text, str(self.path))
