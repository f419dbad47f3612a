"""Subagents: roles in files, parallel lanes, copies that are merged, budgets, steering, and who really answered."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from agent_world import Watch, agent_on, call, hold_delays, say, serving
from test_router import patch
from waiting import PATIENCE, until

from fulgur.agent.crew.roles import Role, find_roles, narrower, parse_role
from fulgur.agent.session.log import read_records
from fulgur.config.named import parse
from fulgur.config.records import ProjectRecords
from fulgur.config.settings import load_settings
from fulgur.errors import FulgurError, UsageError
from fulgur.protocol.agent import (
    ApprovalAsked,
    Decision,
    FileChanged,
    MemberFinished,
    MemberStarted,
    MemberTold,
    ToolFinished,
    TurnDone,
    TurnStopped,
)
from fulgur.sandbox.policy import Policy
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.copies import WorkspaceCopy
from fulgur.workspace.files import Files


def role(home: Path, name: str, model: str, head: str = "", prompt: str = "Do it.") -> None:
    folder = home / "agents"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.md").write_text(f"---\nname: {name}\nmodel: {model}\n{head}---\n{prompt}\n")


def delegating(*tasks: tuple[str, str]) -> dict[str, Any]:
    steps = [{"call": "delegate", "arguments": {"role": who, "task": task}} for who, task in tasks]
    return {"steps": steps, "match": "^share it", "times": 1}


def test_roles_of_a_project_count_when_it_is_trusted(home: Path, workspace: Path) -> None:
    (workspace / ".git").mkdir()
    (workspace / ".git/HEAD").write_text("ref: refs/heads/main\n")
    folder = workspace / ".fulgur" / "agents"
    folder.mkdir(parents=True)
    (folder / "reviewer.md").write_text(
        "---\ndescription: reads\nmodel: ollama:big:7b\ntools: read, search\nsandbox: read-only\n"
        "seconds: 90\ntokens: 5000\n---\nYou review.\n"
    )
    role(home, "mine", "m")
    assert set(find_roles(load_settings(workspace))) == {"mine"}
    ProjectRecords(home).set_trusted(workspace, True)
    found = find_roles(load_settings(workspace))["reviewer"]
    assert found == Role(
        "reviewer", "You review.", "reads", "ollama:big:7b", ("read", "search"), "read-only", 90.0, 5000
    )
    with pytest.raises(UsageError, match="unknown key 'modle'"):
        parse_role(parse(Path("a.md"), "---\nmodle: x\n---\n"))
    assert narrower("workspace-write", "danger-full-access") == "workspace-write"
    assert narrower("workspace-write", "read-only") == "read-only"


async def test_three_in_parallel_with_three_models(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (workspace / f"{name}.txt").write_text("old\n")
        role(home, name, f"model-{name}")
    work = {
        f"model-{name}": [
            call("apply_patch", {"patch": patch(f"{name}.txt", "old", f"by {name}")}, times=1),
            {"steps": [{"delay": 1}, {"text": f"{name} is done."}]},
        ]
        for name in ("a", "b", "c")
    }
    main = [delegating(("a", "first"), ("b", "second"), ("c", "third")), say("All are done.")]
    hold_delays(monkeypatch, asyncio.Barrier(3).wait)  # none ends before all work
    async with serving(main, more=work) as server, agent_on(server, workspace) as watch:
        monkeypatch.setattr("fulgur.client.connection.Connection.open", None)  # all share the one that is open
        end = await watch.turn("share it")
        assert isinstance(end, TurnDone) and end.text == "All are done."
        for name in ("a", "b", "c"):
            assert (workspace / f"{name}.txt").read_text() == f"by {name}\n"
        kinds = [type(event) for event in watch.seen if isinstance(event, MemberStarted | MemberFinished)]
        assert kinds == [MemberStarted] * 3 + [MemberFinished] * 3  # beside each other
        finished = {event.member: event for event in watch.of(MemberFinished)}
        assert {name: event.models for name, event in finished.items()} == {n: (f"model-{n}",) for n in "abc"}
        assert {event.path for event in watch.of(FileChanged)} == {"a.txt", "b.txt", "c.txt"}
        path = watch.agent.state.log.path
        assert [summary.path for summary in watch.agent.sessions()] == [str(path)]  # lists leave subagents out
        noted = [entry.text for entry in watch.agent.transcript() if "answered by" in entry.text]
        assert any(text.startswith("b: done, answered by model-b (asked for: model-b)") for text in noted)
        await watch.agent.undo()
        assert (workspace / "b.txt").read_text() == "old\n"
    # Both files say who answered: the session's own, and the subagent's, as the server named it.
    assert [r["models"] for r in read_records(path) if r["type"] == "member" and r["member"] == "b"] == [["model-b"]]
    own = home / "sessions" / f"{finished['b'].session_id}.jsonl"
    assert {r["model"] for r in read_records(own) if r["type"] == "answered"} == {"model-b"}


async def test_conflicts_are_shown_and_nothing_is_lost(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "a.txt").write_text("old\n")
    role(home, "a", "model-a")
    role(home, "b", "model-b")
    work = {
        "model-a": [call("apply_patch", {"patch": patch("a.txt", "old", "from a")}, times=1), say("a did it")],
        "model-b": [
            {
                "steps": [{"delay": 1}, {"call": "apply_patch", "arguments": {"patch": patch("a.txt", "old", "b")}}],
                "times": 1,
            },
            say("b did it"),
        ],
    }
    main = [delegating(("a", "first"), ("b", "second")), say("Over.")]
    hold_delays(monkeypatch, lambda: until(lambda: (workspace / "a.txt").read_text() == "from a\n"))
    async with serving(main, more=work) as server, agent_on(server, workspace) as watch:
        await watch.turn("share it")
        assert (workspace / "a.txt").read_text() == "from a\n"
        lost = next(event for event in watch.of(MemberFinished) if event.member == "b")
        assert lost.conflicts == ("a.txt",) and lost.paths == ()
        assert "+b\n" in Path(lost.patch).read_text()
        (told,) = [output for output in watch.outputs if "Not merged: its changes conflict" in output]
        assert lost.diff in told and lost.diff.startswith("--- a/a.txt\n") and Path(lost.patch).read_text() == lost.diff


@pytest.mark.parametrize(("answer", "rejected"), [("deny", ()), ("once", (2,)), ("once", ()), ("stop", ())])
async def test_who_wants_to_be_asked_is_shown_what_is_merged(
    home: Path, workspace: Path, answer: Decision, rejected: tuple[int, ...]
) -> None:
    (workspace / "a.txt").write_text("one\nkeep\ntwo\na\nb\nc\n")
    role(home, "a", "model-a")
    text = "*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+1\n@@\n-two\n+2\n*** End Patch"
    work = {"model-a": [call("apply_patch", {"patch": text}, times=1), say("did it")]}
    main = [delegating(("a", "first")), say("Over.")]
    async with serving(main, more=work) as server:
        async with agent_on(server, workspace, "features.guards=false", "approval_policy=untrusted") as watch:
            watch.agent.submit("share it")
            task = await watch.until(ApprovalAsked)
            watch.agent.approve(task.approval_id, "once")
            asked = await watch.until(ApprovalAsked, watch.seen.index(task) + 1)
            assert asked.title == "merge what a changed: a.txt" and len(asked.hunks) == 2 and "-one\n+1\n" in asked.diff
            assert (workspace / "a.txt").read_text() == "one\nkeep\ntwo\na\nb\nc\n"  # nothing before the answer
            if not rejected:  # what the person works on meanwhile is kept, and they are shown it together
                (workspace / "a.txt").write_text("one\nkeep\ntwo\na\nb\nc\nmine\n")
                watch.agent.approve(asked.approval_id, "once")
                asked = await watch.until(ApprovalAsked, watch.seen.index(asked) + 1)
                assert asked.title == "merge what a changed: a.txt"
            watch.agent.approve(asked.approval_id, answer, rejected)
            end = await watch.until(lambda e: isinstance(e, TurnDone | TurnStopped))
            await watch.agent.wait()
    merged = "1\nkeep\n2\na\nb\nc\nmine\n" if not rejected else "1\nkeep\ntwo\na\nb\nc\n"
    unchanged = "one\nkeep\ntwo\na\nb\nc\nmine\n"
    assert (workspace / "a.txt").read_text() == (merged if answer == "once" else unchanged)
    assert isinstance(end, TurnStopped if answer == "stop" else TurnDone)
    if answer == "deny":
        (finished,) = watch.of(MemberFinished)
        assert "did not allow" in finished.left_out and "did not allow" in watch.outputs[0]
        assert "+1\n" in Path(finished.patch).read_text()
    elif rejected:
        assert "left out 1 of 2 hunks" in watch.outputs[0]


async def until_writing(watch: Watch, name: str) -> None:
    await watch.until(lambda e: isinstance(e, MemberTold) and e.member == name and e.kind == "text")


async def test_steering_reaches_one_or_all(home: Path, workspace: Path) -> None:
    role(home, "a", "model-a", "sandbox: read-only\ntools: read, raed\n")
    role(home, "b", "model-b", "sandbox: read-only\n")
    long = [say("Steered.", match="other way"), {"steps": [{"tokens": 5000}]}]
    main = [delegating(("a", "first"), ("b", "second")), say("Over.")]
    async with serving(main, rate=300, more={"model-a": long, "model-b": long}) as server:
        async with agent_on(server, workspace) as watch:
            watch.agent.submit("share it")
            await until_writing(watch, "a")
            await until_writing(watch, "b")
            assert sorted(watch.agent.members) == ["a", "b"]
            watch.agent.tell("a", "the other way")
            ended = await watch.until(MemberFinished)
            assert (ended.member, ended.text) == ("a", "Steered.")
            with pytest.raises(FulgurError, match="no subagent 'a' is running"):
                watch.agent.tell("a", "too late")
            watch.agent.tell("all", "the other way")
            end = await watch.until(TurnDone)
            assert end.text == "Over."
            told = [event.text for event in watch.of(MemberTold) if event.kind == "warning"]
            assert "there is no tool named raed" in told
            steered = [event.member for event in watch.of(MemberTold) if event.kind == "steered"]
            assert steered == ["a", "b"]
            await watch.agent.wait()


async def test_budgets_and_a_stop_end_them(home: Path, workspace: Path) -> None:
    role(home, "slow", "model-a", "seconds: 0.3\n")
    role(home, "dear", "model-b", "tokens: 20\n")
    work = {"model-a": [{"steps": [{"tokens": 5000}]}], "model-b": [call("list", {})]}
    main = [
        delegating(("slow", "x"), ("dear", "y")),
        delegating(("slow", "again")) | {"match": "^once more"},
        say("Over."),
    ]
    async with serving(main, rate=500, more=work) as server, agent_on(server, workspace) as watch:
        await watch.turn("share it")
        assert {event.member: event.how for event in watch.of(MemberFinished)} == {"slow": "budget", "dear": "budget"}
        assert all("none of its changes are in the project" in event.output for event in watch.of(ToolFinished))
        since = len(watch.seen)
        watch.agent.submit("once more")
        await watch.until(MemberStarted, since)
        watch.agent.stop()
        await asyncio.wait_for(watch.agent.wait(), PATIENCE)
        assert watch.agent.members == []


def test_copies_of_killed_programs_are_removed(
    home: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended, alive = tmp_path / "fulgur-copy-4194305-x", tmp_path / f"fulgur-copy-{os.getpid()}-x"
    for folder in (ended, alive):
        folder.mkdir()
    WorkspaceCopy(workspace, BlobStore(home / "blobs")).close()
    assert not ended.exists() and alive.exists()


def test_a_copy_is_merged_with_what_changed_meanwhile(home: Path, workspace: Path) -> None:
    (workspace / "both.txt").write_text("one\n\n\n\nfive\n")
    (workspace / "gone.txt").write_text("x\n")
    (workspace / ".gitignore").write_text("secret.env\n")
    (workspace / "secret.env").write_text("KEY=1\n")
    blobs = BlobStore(home / "blobs")
    files = Files(Policy.make("workspace-write", workspace, home), blobs, home / "j")
    copy = WorkspaceCopy(workspace, blobs)
    assert not (copy.folder / "secret.env").exists()
    (copy.folder / "both.txt").write_text("ONE\n\n\n\nfive\n")
    (workspace / "both.txt").write_text("one\n\n\n\nFIVE\n")
    (copy.folder / "gone.txt").unlink()
    (copy.folder / "new").mkdir()
    (copy.folder / "new/run.sh").write_text("echo\n")
    (copy.folder / "new/run.sh").chmod(0o755)
    merged = copy.merged(files)
    copy.close()
    assert merged.conflicts == [] and {diff.path for diff in merged.diffs} == {"both.txt", "gone.txt", "new/run.sh"}
    assert (workspace / "both.txt").read_text() == "ONE\n\n\n\nFIVE\n"
    assert not (workspace / "gone.txt").exists()
    assert (workspace / "new/run.sh").stat().st_mode & 0o777 == 0o755
    assert not copy.folder.exists()


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files over ten bytes are large ones."""
    monkeypatch.setattr("fulgur.workspace.copies.LARGEST_FILE", 10)
    monkeypatch.setattr("fulgur.workspace.snapshots.LARGEST_FILE", 10)


def test_large_files_are_linked_where_nothing_can_write_through_them(
    home: Path, workspace: Path, small_limits: None
) -> None:
    (workspace / "data.bin").write_bytes(b"x" * 11)
    (workspace / "a.py").write_text("a = 1\n")
    for links in (True, False):
        copy = WorkspaceCopy(workspace, BlobStore(home / "blobs"), links=links)
        assert (copy.folder / "data.bin").is_symlink() == links
        assert (copy.folder / "data.bin").read_bytes() == b"x" * 11 and not (copy.folder / "a.py").is_symlink()
        assert copy.left_out() == []
        copy.close()


def test_a_copy_with_files_missing_is_never_made(home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulgur.workspace.copies.MOST_FILES", 2)
    for name in ("a", "b"):
        (workspace / name).write_text(name)
    WorkspaceCopy(workspace, BlobStore(home / "blobs")).close()
    (workspace / "c").write_text("c")
    with pytest.raises(FulgurError, match="too many files to copy"):
        WorkspaceCopy(workspace, BlobStore(home / "blobs"))


async def test_what_is_too_large_to_merge_is_said(home: Path, workspace: Path, small_limits: None) -> None:
    role(home, "a", "m", "sandbox: workspace-write\n")
    made = "*** Begin Patch\n*** Add File: big.txt\n+more than ten bytes\n*** End Patch"
    replies = [
        delegating(("a", "first")),
        call("apply_patch", {"patch": made}, times=1),
        say("Over."),
    ]
    async with serving(replies) as server, agent_on(server, workspace) as watch:
        assert isinstance(await watch.turn("share it"), TurnDone)
        told = [event.text for event in watch.of(MemberTold) if event.kind == "warning"]
        assert told == ["too large to merge, left out: big.txt"] and not (workspace / "big.txt").exists()


async def test_a_workspace_that_cannot_be_copied_is_said(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fulgur.workspace.copies._MOST_BYTES", -1)
    (workspace / "a.txt").write_text("a\n")
    role(home, "a", "m")
    async with serving([delegating(("a", "first")), say("Over.")]) as server, agent_on(server, workspace) as watch:
        assert isinstance(await watch.turn("share it"), TurnDone)
        assert "too large to copy" in watch.outputs[0]


async def test_subagents_work_after_a_task_list(home: Path, workspace: Path) -> None:
    """A list brings a crew with files of its own; the session's comes back after it."""
    (workspace / "TASKS.md").write_text("- [ ] say it\n")
    role(home, "a", "m", "sandbox: workspace-write\n")
    replies = [delegating(("a", "first")), say("Over.")]
    async with serving(replies) as server, agent_on(server, workspace) as watch:
        await watch.agent.program("/tasks")
        assert (workspace / "TASKS.md").read_text() == "- [x] say it\n"
        assert isinstance(await watch.turn("share it"), TurnDone)
        assert [event.how for event in watch.of(MemberFinished)] == ["done", "done"]
