"""One flipped bit in anything that is stored: a clear error or no change at all, never a traceback, never a hang."""

import asyncio
import os
import random
import re
import shutil
from pathlib import Path

import pytest
from agent_world import agent_on, call, say, serving
from fuzzing import enough, rounds

from fulgur.agent.session.changes import Changes
from fulgur.agent.session.log import SessionLog, find_session, fork_session, summaries
from fulgur.agent.session.state import SessionState
from fulgur.agent.session.undo_store import prune
from fulgur.agent.workbench import Workbench
from fulgur.config.records import ProjectRecords
from fulgur.config.settings import load_settings
from fulgur.errors import FulgurError
from fulgur.ui.cli import main

PATCH = "*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+two\n*** End Patch"


@pytest.fixture
async def stored(home: Path, workspace: Path, tmp_path: Path) -> Path:
    """A home with two sessions, blobs, an index, approvals and a config; a copy to take every damage from."""
    (workspace / "a.txt").write_text("one\n")
    (workspace / "sub").mkdir()
    replies = [call("apply_patch", {"patch": PATCH}, times=1), say("Said ü."), say("And more.")]
    async with serving(replies) as server:
        async with agent_on(server, workspace, "features.guards=false") as watch:
            await watch.turn("change it")
            await watch.turn("again")
            await watch.agent.fork()
            watch.agent.state.queue("later")
    ProjectRecords(home).approve(workspace, ("inside", "exactly", str(workspace), "make test"))
    ProjectRecords(home).set_trusted(workspace, True)
    (home / "config.toml").write_text('model = "m"\napproval_policy = "on-request"\n[features]\nundo = true\n')
    summaries(home)
    copy = tmp_path / "whole"
    shutil.copytree(home, copy)
    return copy


def flip(data: bytes, random: random.Random) -> bytes:
    place, bit = random.randrange(len(data)), 1 << random.randrange(8)
    return data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]


def fresh(home: Path, whole: Path) -> None:
    shutil.rmtree(home)
    shutil.copytree(whole, home)


def files(home: Path, *patterns: str) -> list[Path]:
    return sorted(
        path for pattern in patterns for path in home.rglob(pattern) if path.is_file() and path.stat().st_size
    )


async def test_a_bit_of_a_session(home: Path, workspace: Path, stored: Path) -> None:
    names = [path.name for path in files(home, "*.jsonl")]
    refused = cut = 0
    for seed, generator in rounds(300):
        fresh(home, stored)
        path = home / "sessions" / generator.choice(names)
        whole = path.read_bytes()
        path.write_bytes(flip(whole, generator))
        listed = {summary.session_id: summary for summary in summaries(home, workspace)}
        try:
            state = SessionState.load(SessionLog(path))
        except FulgurError as error:
            refused += 1
            assert f"{path}, line " in error.message and "is damaged" in error.message and error.hint, f"seed {seed}"
            assert "damaged: " in listed[path.stem].first_prompt, f"seed {seed}"
            number = int(error.message.split(", line ")[1].split()[0])
            if number > 1:  # what stands before it can be gone on with
                forked = fork_session(home, path)
                assert SessionState.load(forked).log.id == forked.id
                forked.close()
            assert path.read_bytes() != whole  # and nothing was written over
        else:
            cut += 1  # only a last line that is no longer whole can be left out without a word
            assert len(state.log.records()) >= whole.count(b"\n") - 1, f"seed {seed}"
            state.log.close()
    enough(refused, 290)
    assert cut <= 10


async def test_a_bit_of_a_session_of_an_earlier_version(home: Path, workspace: Path, stored: Path) -> None:
    """Without checksums not every change can be seen, but none may crash or hang."""
    [first, *_] = files(stored, "*.jsonl")
    old = re.sub(rb',"crc":"[0-9a-f]{8}"', b"", first.read_bytes()).replace(b',"sealed":true', b"")
    path = home / "sessions" / first.name
    path.write_bytes(old)
    assert len(SessionState.load(SessionLog(path)).turns) == 2
    for seed, generator in rounds(300):
        path.write_bytes(flip(old, generator))
        summaries(home, workspace)
        log = SessionLog(path)
        try:
            state = SessionState.load(log)
            state.begin_turn("x")
            state.end_turn("done")
        except FulgurError as error:
            assert "is damaged" in error.message, f"seed {seed}"
        log.close()


async def test_a_bit_of_what_undo_needs(home: Path, workspace: Path, stored: Path) -> None:
    """Undo puts back exactly what was there, or says what it could not put back."""
    told = 0
    for seed, generator in rounds(120):
        fresh(home, stored)
        (workspace / "a.txt").write_text("two\n")
        path = generator.choice(files(home / "blobs", "*"))
        path.write_bytes(flip(path.read_bytes(), generator))
        log = SessionLog(find_session(home, "last", workspace))
        state = SessionState.load(log)
        bench = Workbench.make(load_settings(workspace), log.id)
        try:
            _, restored = await Changes(bench, state, True).undo()
            told += bool(restored.failed)
            assert restored.failed or (workspace / "a.txt").read_text() == "one\n", f"seed {seed}"
        except FulgurError:
            told += 1
        assert (workspace / "a.txt").read_text() in ("one\n", "two\n"), f"seed {seed}: damaged content was restored"
        assert bench.files.blobs.get(bench.files.blobs.put(b"one\n")) == b"one\n"  # storing it again mends it
        bench.close()
        log.close()
    enough(told, 20)


async def test_a_bit_of_everything_else(home: Path, workspace: Path, stored: Path) -> None:
    """Config, approvals, the list's index, the snapshot of the workspace: commands end with 0, 1 or 2 and no trace."""
    for seed, generator in rounds(200):
        fresh(home, stored)
        path = generator.choice(files(home, "config.toml", "projects.json", "index.msgpack", "*.snapshot"))
        path.write_bytes(flip(path.read_bytes(), generator))
        codes = [
            main(["config", "check", "-C", str(workspace)]),
            main(["config", "approvals", "-C", str(workspace)]),
            main(["exec", "--list", "-C", str(workspace)]),
        ]
        assert set(codes) <= {0, 1, 2}, f"seed {seed}"
        prune(home, most_days=30, most_bytes=1 << 30)
        if path.name == "projects.json":
            try:
                allowed = ProjectRecords(home).approved(workspace)
                assert all(isinstance(word, str) for words in allowed for word in words)
            except FulgurError as error:
                assert "is damaged" in error.message


async def test_resuming_a_damaged_session_ends(home: Path, workspace: Path, stored: Path) -> None:
    """Through the whole agent: an error at once, or a turn that ends."""
    names = [path.name for path in files(home, "*.jsonl")]
    async with serving([say("ok")]) as server:
        for seed, generator in rounds(25):
            fresh(home, stored)
            path = home / "sessions" / generator.choice(names)
            path.write_bytes(flip(path.read_bytes(), generator))
            try:
                async with agent_on(server, workspace, "features.guards=false", session=path.stem) as watch:
                    async with asyncio.timeout(60):
                        await watch.turn("go on")
            except FulgurError as error:
                assert "is damaged" in error.message, f"seed {seed}"


async def test_switching_to_a_damaged_session_leaves_this_one_whole(home: Path, workspace: Path, stored: Path) -> None:
    [first, *_] = files(home, "*.jsonl")
    lines = first.read_bytes().split(b"\n")
    first.write_bytes(b"\n".join([*lines[:2], lines[2][:-3] + b"x" + lines[2][-2:], *lines[3:]]))
    async with serving([call("shell", {"command": "echo hi"}, times=1), say("ok")]) as server:
        async with agent_on(server, workspace, "features.guards=false") as watch:
            with pytest.raises(FulgurError, match="line 3 is damaged"):
                await watch.agent.resume(first.stem)
            async with asyncio.timeout(60):
                await watch.turn("go on")
            assert watch.outputs == ["hi"]


def test_what_is_stored_is_private(home: Path, stored: Path) -> None:
    for path in files(home, "*"):
        if path.parent.name != home.name:
            assert path.parent.stat().st_mode & 0o077 == 0 or os.stat(path).st_mode & 0o077 == 0, path
