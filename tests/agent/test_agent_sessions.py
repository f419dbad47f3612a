"""Sessions on disk: resume, fork, list, torn lines, undo."""

import os
from pathlib import Path

import pytest
from agent_world import agent_on, call, say, serving

from fulgur.agent.session.history import call_output, call_title, item_text, message
from fulgur.agent.session.log import SessionLog, find_session, summaries
from fulgur.agent.session.state import SessionState
from fulgur.errors import FulgurError, UsageError
from fulgur.protocol.agent import QueueChanged, SessionStarted, Undone, Warned


def contents(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] in (".git", ".fulgur"):
            continue
        mode = path.lstat().st_mode
        found[name] = (mode, os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b"")
    return found


async def test_resume_goes_on_with_the_whole_history(workspace: Path) -> None:
    async with serving([say("One.", match="first"), say("Two.", match="second")]) as server:
        async with agent_on(server, workspace) as watch:
            await watch.turn("first")
            session_id = watch.agent.state.log.id
        async with agent_on(server, workspace, session=session_id[:-2]) as watch:
            await watch.turn("second")
            assert watch.of(SessionStarted)[0].resumed_turns == 1
            assert watch.agent.state.log.id == session_id
            said = [item_text(item) for item in watch.agent.state.history.visible()]
            assert said == ["first", "One.", "second", "Two."]
            kinds = [(e.turn, e.kind, e.text) for e in watch.agent.transcript()]
            assert kinds == [
                (1, "user", "first"),
                (1, "assistant", "One."),
                (2, "user", "second"),
                (2, "assistant", "Two."),
            ]


async def test_fork_leaves_the_original_alone(workspace: Path, home: Path) -> None:
    async with serving([say("ok")]) as server, agent_on(server, workspace) as watch:
        await watch.turn("first")
        original = watch.agent.state.log.path
        before = original.read_bytes()
        fork = await watch.agent.fork()
        await watch.turn("second")
        assert original.read_bytes() == before
        listed = {s.session_id: s for s in watch.agent.sessions()}
        assert listed[fork].turns == 2 and listed[fork].forked_from == original.stem
        assert listed[original.stem].turns == 1
        await watch.agent.resume(original.stem)
        assert len(watch.agent.state.turns) == 1


def test_a_torn_line_is_cut_off_and_the_turn_closed(workspace: Path, home: Path) -> None:
    log = SessionLog.create(home, workspace, "m")
    state = SessionState(log)
    state.begin_turn("do it")
    state.partial("I was say")
    state.log.append("partial", text="ing")
    log.close()
    with open(log.path, "ab") as file:
        file.write(b'{"type":"items","items":[{"type":"mess')
    loaded = SessionState.load(SessionLog(log.path))
    assert loaded.interrupted
    assert item_text(loaded.history.everything()[-1]) == "I was saying"
    assert loaded.turn.ended == "stopped"
    again = SessionState.load(SessionLog(log.path))
    assert not again.interrupted
    assert item_text(again.history.everything()[-1]) == "I was saying"


async def test_queued_prompts_survive(workspace: Path, home: Path) -> None:
    log = SessionLog.create(home, workspace, "m")
    state = SessionState(log)
    state.begin_turn("one")
    state.queue("two")
    log.close()

    async with serving([say("ok")]) as server, agent_on(server, workspace, session="last") as watch:
        assert (await watch.until(QueueChanged)).prompts == ("two",)
        assert any("was interrupted" in w.message for w in watch.of(Warned))
        await watch.turn("go on")
        assert [t.text for t in watch.agent.state.turns] == ["one", "go on", "two"]


async def test_a_queued_prompt_that_was_taken_back_stays_away(workspace: Path, home: Path) -> None:
    async with serving([say("ok " * 400, match="one"), say("ok")], rate=400) as server:
        async with agent_on(server, workspace) as watch:
            watch.agent.submit("one")
            for text in ("again", "other", "again"):
                watch.agent.queue(text)
            assert await watch.agent.withdraw("again")
            assert watch.agent.state.queued == ["again", "other"]  # the last one with this text went
            assert await watch.agent.withdraw("other")
            assert not await watch.agent.withdraw("other")
            await watch.until(lambda e: isinstance(e, QueueChanged) and e.prompts == ("again",))
            session = watch.agent.state.log.id
        async with agent_on(server, workspace, session=session) as watch:
            assert (await watch.until(QueueChanged)).prompts == ("again",)


def test_finding_sessions(workspace: Path, home: Path) -> None:
    with pytest.raises(UsageError, match="no session to resume"):
        find_session(home, "last", workspace)
    log = SessionLog.create(home, workspace, "m")
    with pytest.raises(UsageError, match="no session named"):
        find_session(home, "nope", workspace)
    assert find_session(home, log.id[:12], workspace) == log.path
    assert summaries(home, workspace / "elsewhere") == []


async def test_undo_brings_back_every_byte(workspace: Path) -> None:
    """Changed, deleted, created, renamed, made executable, linked: by tools and by shell commands alike."""
    p = workspace / "p"
    (p / "sub/empty").mkdir(parents=True)
    (p / "a.bin").write_bytes(bytes(range(256)))
    (p / "sub/b.txt").write_bytes(b"one\r\ntwo\r\n")
    (p / "run.sh").write_text("#!/bin/sh\n")
    (p / "link").symlink_to("a.bin")
    (p / ".env").write_text("KEY=1\n")
    (workspace / ".gitignore").write_text(".env\nbuild/\n")
    before = contents(workspace)
    patch = "*** Begin Patch\n*** Update File: p/sub/b.txt\n@@\n-one\n+1\n*** Add File: new.py\n+x = 1\n*** End Patch"
    shell = (
        "cd p; printf 'changed' > a.bin; rm .env; mv run.sh sub/go.sh; chmod +x sub/go.sh; rmdir sub/empty; "
        "mkdir -p made/deep; echo x > made/deep/file; rm link; ln -s sub link; rm -r sub/b.txt; mkdir sub/b.txt"
    )
    replies = [call("apply_patch", {"patch": patch}, times=1), call("shell", {"command": shell}, times=1), say("ok")]

    async with serving(replies) as server, agent_on(server, workspace, "features.guards=false") as watch:
        await watch.turn("wreck it")
        assert contents(workspace) != before
        assert "-one" in watch.agent.diff() and "+x = 1" in watch.agent.diff()
        await watch.agent.undo()
        assert contents(workspace) == before
        undone = await watch.until(Undone)
        names = ("a.bin", ".env", "run.sh", "link", "sub/b.txt", "made/deep/file")
        assert {"new.py", *(f"p/{name}" for name in names)} <= set(undone.paths)
        assert undone.kept == ()
        with pytest.raises(FulgurError, match="nothing to undo"):
            await watch.agent.undo()


async def test_undo_goes_back_turn_by_turn_also_after_resume(workspace: Path) -> None:
    replies = [call("shell", {"command": f"echo {n} > sub/f"}, match=f"^{n}", times=1) for n in (1, 2)] + [say("ok")]

    async with serving(replies) as server:
        async with agent_on(server, workspace) as watch:
            await watch.turn("1")
            await watch.turn("2")
        async with agent_on(server, workspace, session="last") as watch:
            await watch.agent.undo()
            assert (workspace / "sub/f").read_text() == "1\n"
            await watch.agent.undo()
            assert not (workspace / "sub/f").exists()


async def test_undo_keeps_what_the_person_changed_since(workspace: Path) -> None:
    (workspace / "f").write_text("0\nb\nc\n")
    replies = [call("shell", {"command": "printf '1\\nb\\nc\\n' > f"}, times=1), say("ok")]
    async with serving(replies) as server, agent_on(server, workspace, "sandbox_mode=danger-full-access") as watch:
        await watch.turn("go")
        (workspace / "f").write_text("1\nb\nmine\n")
        await watch.agent.undo()
        assert (workspace / "f").read_text() == "0\nb\nmine\n"
        assert (await watch.until(Undone)).kept == ("f",)


async def test_undo_leaves_a_file_that_was_changed_in_the_same_lines(workspace: Path) -> None:
    (workspace / "f").write_text("0\n")
    replies = [call("shell", {"command": "echo 1 > f"}, times=1), say("ok")]
    async with serving(replies) as server, agent_on(server, workspace, "sandbox_mode=danger-full-access") as watch:
        await watch.turn("go")
        (workspace / "f").write_text("mine\n")
        with pytest.raises(FulgurError, match="f: the same lines were changed after that turn"):
            await watch.agent.undo()
        assert (workspace / "f").read_text() == "mine\n"
        (workspace / "f").write_text("1\n")
        await watch.agent.undo()  # it was not taken for done
        assert (workspace / "f").read_text() == "0\n"


def test_a_file_cut_anywhere_loads_with_every_whole_turn(workspace: Path, home: Path) -> None:
    log = SessionLog.create(home, workspace, "m")
    state = SessionState(log)
    ends: list[tuple[int, int]] = []
    for number in range(1, 4):
        state.begin_turn(f"prompt {number} ü")
        state.partial("Sa")
        state.log.append("partial", text="id")
        state.add_items(
            [
                message("assistant", f"Said {number}"),
                {"type": "function_call", "call_id": f"c{number}", "name": "read", "arguments": "{}"},
            ]
        )
        state.add_items([call_output(f"c{number}", "out")])
        state.end_turn("done")
        ends.append((log.path.stat().st_size, number))
    log.close()
    whole = log.path.read_bytes()
    first = whole.index(b"\n") + 1
    for size in range(first, len(whole) + 1):
        copy = home / "sessions" / "cut.jsonl"
        copy.write_bytes(whole[:size])
        loaded = SessionState.load(SessionLog(copy))
        done = sum(turn.ended == "done" for turn in loaded.turns)
        assert done == sum(end <= size for end, _ in ends), size
        assert loaded.history.open_calls() == []
        assert all(turn.ended for turn in loaded.turns)
        loaded.log.close()
        again = SessionState.load(SessionLog(copy))
        assert again.history.everything() == loaded.history.everything()
        again.log.close()


@pytest.mark.parametrize(
    ("name", "arguments", "title"),
    [
        ("shell", '{"command": "pytest -q", "timeout": 60}', "$ pytest -q"),
        ("read", '{"path": "app.py", "limit": 20}', "read app.py, 20"),
        (
            "apply_patch",
            '{"patch": "*** Begin Patch\\n*** Add File: a.py\\n+x\\n*** Update File: b.py\\n"}',
            "apply_patch a.py, b.py",
        ),
        ("update_plan", '{"plan": [{"step": "look", "status": "completed"}]}', "update_plan"),
        ("shell", '{"command": ', 'shell {"command": '),
        ("read", "", "read"),
    ],
)
def test_a_stored_call_is_one_line_for_people(name: str, arguments: str, title: str) -> None:
    assert call_title(name, arguments) == title
