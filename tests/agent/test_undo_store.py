"""What undo needs stays within its bounds, and nothing a session can still undo goes without a word."""

import os
import time
from pathlib import Path

import pytest
from agent_world import agent_on, call, say, serving

from fulgur.agent.session.log import read_records, summaries
from fulgur.agent.session.records import encode_record
from fulgur.agent.session.undo_store import DAY, due, prune
from fulgur.errors import FulgurError
from fulgur.protocol.agent import Warned
from fulgur.workspace.files import Change
from fulgur.workspace.journal import EditJournal


async def edited(workspace: Path, text: str) -> None:
    """A session of one turn that changed a file."""
    patch = f"*** Begin Patch\n*** Add File: {text[:8]}.txt\n+{text}\n*** End Patch"

    async with serving([call("apply_patch", {"patch": patch}, times=1), say("ok")]) as server:
        async with agent_on(server, workspace) as watch:
            await watch.turn("write")


def older(home: Path, session: str, days: float) -> None:
    """Let the session have been used that long ago, and its contents with it."""
    path = home / "sessions" / f"{session}.jsonl"
    then = time.time() - days * DAY
    records = list(read_records(path))
    path.write_bytes(b"".join(encode_record({**record, "time": then}) for record in records))
    for blob in (home / "blobs").rglob("*"):
        if blob.is_file():
            os.utime(blob, (then, then))


async def test_bounds_by_age_and_size(home: Path, workspace: Path) -> None:
    for text in ("first" + "a" * 5000, "second" + "b" * 5000, "third" + "c" * 5000):
        await edited(workspace, text)
    third, second, first = [summary.session_id for summary in summaries(home)]
    assert prune(home, most_days=30, most_bytes=1).sessions == ()  # all were used within a day
    for session, days in ((first, 40), (second, 20), (third, 2)):
        older(home, session, days)
    for state in (home / "index").glob("*"):
        state.unlink()
    pruned = prune(home, most_days=30, most_bytes=1 << 30)
    assert pruned.sessions == (first,)
    assert "dropped the undo data of 1 old sessions" in str(pruned)
    assert {s.session_id: s.undo for s in summaries(home)} == {first: False, second: True, third: True}
    assert prune(home, most_days=30, most_bytes=1, spare=[third]).sessions == (second,)
    assert prune(home, most_days=30, most_bytes=1, spare=[third]).sessions == ()  # said once

    async def resumed(session: str) -> None:
        async with serving([say("ok")]) as server, agent_on(server, workspace, session=session) as watch:
            if session == third:
                await watch.agent.undo()
                assert not (workspace / "thirdccc.txt").exists()
                return
            with pytest.raises(FulgurError, match="can no longer be undone"):
                await watch.agent.undo()
            assert any("pruned" in entry.text for entry in watch.agent.transcript())
            assert [e.text for e in watch.agent.transcript() if e.kind == "user"] == ["write"]  # the rest is there

    await resumed(third)
    await resumed(second)


async def test_it_is_said_at_the_start_once_a_day(home: Path, workspace: Path) -> None:
    await edited(workspace, "first")
    assert due(home) and not due(home)
    older(home, summaries(home)[0].session_id, 40)
    os.utime(home / "blobs/pruned", (0, 0))

    async with serving([say("ok")]) as server, agent_on(server, workspace) as watch:
        # Other warnings may come first: of the sandbox, where it lacks something.
        said = "dropped the undo data of 1 old sessions"
        await watch.until(lambda event: isinstance(event, Warned) and said in event.message)


async def test_contents_nobody_needs_go_but_not_at_once(home: Path, workspace: Path) -> None:
    await edited(workspace, "first")
    stray = home / "blobs" / "ab" / ("c" * 62)
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"x" * 100)
    assert prune(home, most_days=30, most_bytes=1 << 30).bytes == 0 and stray.exists()
    os.utime(stray, (0, 0))
    assert prune(home, most_days=30, most_bytes=1 << 30).bytes == 100 and not stray.exists()


def test_single_edits_share_the_store_and_its_bounds(home: Path, workspace: Path) -> None:
    journal = EditJournal(home)
    path, other = workspace / "a.py", workspace / "b.py"
    path.write_bytes(b"0" * 1000)
    other.write_bytes(b"x")

    def write(letter: str) -> None:
        new = letter.encode()
        journal.write([Change(path, path.read_bytes(), new * 1000), Change(other, other.read_bytes(), new)])

    for letter in "123":
        write(letter)
    for blob in (home / "blobs").rglob("*"):
        if blob.is_file():
            os.utime(blob, (0, 0))
    prune(home, most_days=30, most_bytes=1 << 20)
    assert len(journal.entries()) == 6
    journal.undo()
    prune(home, most_days=30, most_bytes=2500)  # room for one edit, of both files
    assert len(journal.entries()) == 2
    assert journal.undo() and path.read_bytes() == b"1" * 1000 and other.read_bytes() == b"1"
    with pytest.raises(FulgurError, match="no edit to undo"):
        journal.undo()
    write("4")
    prune(home, most_days=0, most_bytes=1 << 20)
    assert journal.entries() == []
