"""Writing and undoing: every byte, line ending, encoding and mode comes back."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgur.errors import FulgurError
from fulgur.workspace.files import Change
from fulgur.workspace.journal import KEPT, EditJournal
from fulgur.workspace.textfile import TextFile

LINES = st.lists(st.text(alphabet="ab =é", max_size=4), max_size=8)


@given(LINES, st.lists(st.sampled_from(["\n", "\r\n"]), min_size=8, max_size=8), st.booleans())
def test_the_same_text_gives_the_same_bytes(lines: list[str], endings: list[str], open_end: bool) -> None:
    text = "".join(line + ending for line, ending in zip(lines, endings, strict=False))
    data = (text.rstrip("\r\n") if open_end else text).encode()
    file = TextFile.decode(data, "f")
    assert file.with_plain(file.plain, "f") == data


def test_lines_that_stay_keep_their_endings() -> None:
    file = TextFile.decode(b"one\r\ntwo\r\nthree\nfour", "f")
    assert file.plain == "one\ntwo\nthree\nfour"
    assert file.with_plain("one\nTWO\nnew\nthree\nfour", "f") == b"one\r\nTWO\r\nnew\r\nthree\nfour"
    assert file.with_plain("one\ntwo\nthree\nfour\n", "f") == b"one\r\ntwo\r\nthree\nfour\r\n"


def test_marks_and_encodings_stay() -> None:
    for data in (b"\xef\xbb\xbfa = 1\r\n", "a = 'é'\n".encode("latin-1"), "a = 1\n".encode("utf-16")):
        file = TextFile.decode(data, "f")
        changed = file.with_plain(file.plain.replace("a =", "b ="), "f")
        assert TextFile.decode(changed, "f").encoding == file.encoding
        assert TextFile.decode(changed, "f").with_plain(file.plain, "f") == data


def test_undo_restores_bytes_and_mode(tmp_path: Path) -> None:
    journal = EditJournal(tmp_path / "home")
    path = tmp_path / "run.sh"
    path.write_bytes(b"one\r\n")
    path.chmod(0o751)
    journal.write([Change(path, b"one\r\n", b"two\n")])
    journal.write([Change(path, b"two\n", b"three")])
    assert path.read_bytes() == b"three" and stat.S_IMODE(path.stat().st_mode) == 0o751
    assert [entry.path for entry in journal.undo(path)] == [str(path)]
    assert path.read_bytes() == b"two\n"
    EditJournal(tmp_path / "home").undo()
    assert path.read_bytes() == b"one\r\n" and stat.S_IMODE(path.stat().st_mode) == 0o751
    with pytest.raises(FulgurError, match="no edit to undo"):
        journal.undo()
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")] == []


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    journal = EditJournal(tmp_path / "home")
    path = tmp_path / "a.py"
    path.write_bytes(b"one")
    with pytest.raises(FulgurError, match="changed since it was read"):
        journal.write([Change(path, b"other", b"two")])
    journal.write([Change(path, b"one", b"two")])
    path.write_bytes(b"mine")
    with pytest.raises(FulgurError, match="was changed after"):
        journal.undo()
    assert path.read_bytes() == b"mine"


def test_a_link_is_followed_not_replaced(tmp_path: Path) -> None:
    real, link = tmp_path / "real.py", tmp_path / "link.py"
    real.write_bytes(b"one")
    link.symlink_to(real)
    EditJournal(tmp_path / "home").write([Change(link, b"one", b"two")])
    assert link.is_symlink() and real.read_bytes() == b"two"


def test_a_journal_cut_off_by_a_crash_still_reads(tmp_path: Path) -> None:
    journal = EditJournal(tmp_path / "home")
    path = tmp_path / "a.py"
    path.write_bytes(b"one")
    journal.write([Change(path, b"one", b"two")])
    with journal.file.open("a") as file:
        file.write('{"path": "half')
    assert len(journal.entries()) == 1


def test_the_journal_keeps_its_last_edits_and_undo_says_what_is_gone(tmp_path: Path) -> None:
    journal = EditJournal(tmp_path / "home")
    path = tmp_path / "a.py"
    path.write_bytes(b"0")
    for number in range(KEPT + 5):
        journal.write([Change(path, str(number).encode(), str(number + 1).encode())])
    assert len(journal.entries()) == KEPT
    journal.blobs.path(journal.entries()[-1].before).unlink()
    with pytest.raises(FulgurError, match="too old"):
        journal.undo()
    assert path.read_bytes() == str(KEPT + 5).encode()


def test_edits_of_several_processes_are_all_kept(tmp_path: Path, home: Path) -> None:
    """Each reads the journal, adds its own and writes it: one of two at once was lost, and could not be undone."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom fulgur.workspace.files import Change\n"
        "from fulgur.workspace.journal import EditJournal\n"
        "journal = EditJournal(Path(sys.argv[1]))\n"
        "for number in range(10):\n"
        "    path = Path(sys.argv[2]) / f'{sys.argv[3]}-{number}'\n"
        "    path.write_bytes(b'a')\n"
        "    journal.write([Change(path, b'a', b'b')])\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", code, str(home), str(tmp_path), str(n)]) for n in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    journal = EditJournal(home)
    assert len({entry.path for entry in journal.entries()}) == len({entry.time for entry in journal.entries()}) == 40
    for _ in range(40):
        journal.undo()
    assert {path.read_bytes() for path in tmp_path.glob("?-*")} == {b"a"}


def test_a_read_only_file_stays_as_it_is(tmp_path: Path, home: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"a = 1\n")
    path.chmod(0o444)
    journal = EditJournal(home)
    with pytest.raises(FulgurError, match="is read-only; nothing was changed"):
        journal.write([Change(path, b"a = 1\n", b"a = 2\n")])
    assert path.read_bytes() == b"a = 1\n" and journal.entries() == []
