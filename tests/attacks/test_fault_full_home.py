"""A home that fills, or cannot be written: every turn ends and says why, and what was stored stays whole."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from agent_world import agent_on, call, say, serving

from fulgur.agent.session.log import SessionLog
from fulgur.agent.session.state import SessionState
from fulgur.errors import FulgurError
from fulgur.protocol.agent import TurnDone, TurnFailed
from fulgur.ui.cli import main
from fulgur.ui.tui.draft import PrivateHistory

REPLIES = [
    call("shell", {"command": "echo hi"}, times=1),
    call("read", {"path": "a.txt"}, times=1),
    {"steps": [{"text": "Said so. "}, {"tokens": 40}]},
]


class FullAfter:
    """`os.write` on a disk with room for so many bytes more, for session files alone."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._write = os.write

    def __call__(self, descriptor: int, data: Any) -> int:
        if ".jsonl" not in os.readlink(f"/proc/self/fd/{descriptor}"):
            return self._write(descriptor, data)
        if self.room <= 0:
            raise OSError(28, "No space left on device")
        written = self._write(descriptor, bytes(data)[: self.room])
        self.room -= written
        return written


@pytest.mark.parametrize("room", [0, 10, 200, 400, 600, 800, 1000, 1200])
async def test_a_turn_ends_wherever_the_disk_fills(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    (workspace / "a.txt").write_text("one\n")
    async with serving(REPLIES) as server:
        async with agent_on(server, workspace, "features.guards=false") as watch:
            path = watch.agent.state.log.path
            with monkeypatch.context() as patched:
                patched.setattr(os, "write", FullAfter(room))
                async with asyncio.timeout(60):
                    end = await watch.turn("go")
                    watch.agent.submit("once more")
                    await watch.agent.wait()
            assert isinstance(end, TurnFailed) and "No space left" in end.message and str(path) in end.message
            whole = path.read_bytes()
            assert whole.endswith(b"\n")  # nothing half written
            # There is room again: the session goes on.
            async with asyncio.timeout(60):
                assert isinstance(await watch.turn("and now"), TurnDone)
        assert path.read_bytes().startswith(whole)
        SessionState.load(SessionLog(path)).log.close()


async def test_a_broken_snapshot_costs_undo_and_not_the_turn(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fulgur.workspace.blobs import BlobStore

    def full(self: BlobStore, data: bytes) -> str:
        raise OSError(28, "No space left on device")

    async with serving([call("shell", {"command": "echo hi"}, times=1), say("ok")]) as server:
        async with agent_on(server, workspace, "features.guards=false") as watch:
            monkeypatch.setattr(BlobStore, "put", full)
            async with asyncio.timeout(60):
                end = await watch.turn("go")
            assert isinstance(end, TurnDone | TurnFailed)


def test_commands_say_it_without_a_traceback(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "sessions").write_text("a file where a folder should be")
    with pytest.raises(OSError):
        SessionLog.create(home, workspace, "m")
    assert main(["config", "approvals", "--forget", "-C", str(workspace)]) == 0
    (home / "projects.json").unlink(missing_ok=True)
    (home / "projects.json").mkdir()
    assert main(["config", "approvals", "-C", str(workspace)]) == 1
    assert "Is a directory" in capsys.readouterr().err


def test_a_log_takes_back_half_a_line(home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SessionLog.create(home, workspace, "m")
    size = log.path.stat().st_size
    monkeypatch.setattr(os, "write", FullAfter(20))
    with pytest.raises(FulgurError, match="cannot be saved"):
        log.append("queued", text="x" * 100)
    assert log.path.stat().st_size == size


def test_the_history_of_prompts_is_private_and_never_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("")
    path.chmod(0o644)
    history = PrivateHistory(str(path))
    history.store_string("secret")
    assert path.stat().st_mode & 0o777 == 0o600 and "secret" in path.read_text()
    missing = PrivateHistory(str(tmp_path / "no" / "folder"))
    missing.store_string("x")
    assert list(missing.load_history_strings()) == []
