"""Changes of single files that can be taken back byte for byte: written atomically, journalled before they happen."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.textfile import TextFile, split_lines

KEPT = 200


@dataclass(frozen=True)
class JournalEntry:
    """One change: the file's content before and after, by hash."""

    path: str
    before: str
    after: str
    time: float


class EditJournal:
    """The last changes made by `fulgur edit`, newest last."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "journal.jsonl"
        self.blobs = BlobStore(folder / "contents")

    def entries(self) -> list[JournalEntry]:
        try:
            lines = self.file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):  # a line that was cut off by a crash
                found.append(JournalEntry(**json.loads(line)))
        return found

    def last(self, path: Path | None = None) -> JournalEntry | None:
        """The newest change, of this file or of any."""
        wanted = None if path is None else str(path.resolve())
        return next((e for e in reversed(self.entries()) if wanted is None or e.path == wanted), None)

    def contents(self, entry: JournalEntry) -> tuple[bytes, bytes]:
        return self.blobs.get(entry.before), self.blobs.get(entry.after)

    def write(self, path: Path, before: bytes, after: bytes) -> None:
        """Change a file from `before` to `after`; refuses when the file is no longer `before`."""
        real = path.resolve()
        if read(real) != before:
            raise FulgurError(f"{path} changed meanwhile; nothing was written")
        entry = JournalEntry(str(real), self.blobs.put(before), self.blobs.put(after), time.time())
        self._save([*self.entries(), entry][-KEPT:])
        replace(real, after)

    def undo(self, path: Path | None = None) -> JournalEntry:
        """Take the newest change back (of this file, or of any)."""
        entry = self.last(path)
        if entry is None:
            raise FulgurError("there is no edit to undo" + (f" in {path}" if path else ""))
        before, after = self.contents(entry)
        real = Path(entry.path)
        if read(real) != after:
            raise FulgurError(
                f"{real} was changed after that edit; nothing was undone",
                hint="Take the later change back first, or restore the file by hand.",
            )
        replace(real, before)
        self._save([other for other in self.entries() if other != entry])
        return entry

    def _save(self, entries: list[JournalEntry]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self.file.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text("".join(json.dumps(asdict(entry)) + "\n" for entry in entries), encoding="utf-8")
        os.replace(temporary, self.file)


def read(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise FulgurError(f"{path} is not a file")
        return path.read_bytes()
    except OSError as error:
        raise FulgurError(f"{path}: {error.strerror}") from None


def replace(path: Path, content: bytes) -> None:
    """New content in one step, with the file's mode and owner kept."""
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
    old = path.stat()
    try:
        with temporary.open("xb") as file:
            file.write(content)
            if (old.st_uid, old.st_gid) != (os.getuid(), os.getgid()):
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
        os.replace(temporary, path)
    except OSError as error:
        raise FulgurError(f"{path}: {error.strerror}; nothing was written") from None
    finally:
        temporary.unlink(missing_ok=True)


def plain_text(file: TextFile) -> str:
    """The text with line feeds only, as regions and refactorings see it."""
    return "".join(line + ("\n" if ending else "") for line, ending in zip(file.lines, file.endings, strict=True))


def with_text(file: TextFile, text: str, name: str) -> bytes:
    """The bytes of the file with another text: lines that stay keep their endings, new ones get the file's own."""
    lines, ends = split_lines(text)
    changed = TextFile(list(file.lines), list(file.endings), file.encoding, file.mark)
    matcher = difflib.SequenceMatcher(None, file.lines, lines, autojunk=False)
    for tag, a, b, c, d in reversed(matcher.get_opcodes()):
        if tag != "equal":
            endings = file.endings[a:b] if b - a == d - c else [file.newline] * (d - c)
            changed.lines[a:b] = lines[c:d]
            changed.endings[a:b] = endings
    for index in range(len(changed.endings) - 1):
        changed.endings[index] = changed.endings[index] or file.newline
    if changed.endings:
        last = changed.endings[-1] or file.newline
        changed.endings[-1] = last if ends and ends[-1] else ""
    return changed.encode(name)
