"""Hooks: when they run, what they are given, what they may refuse, and that nobody's folder brings its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agent_world import agent_on, call, needs_sandbox, say, serving

from fulgur.agent.session.history import is_said, item_text
from fulgur.config.hooks import find_hooks
from fulgur.config.settings import load_settings
from fulgur.errors import UsageError
from fulgur.protocol.agent import FileChanged, ToolFinished, TurnDone, TurnFailed, Warned

pytestmark = needs_sandbox
QUIET = "features.guards=false"


def hook(name: str, on: str, command: str, **more: object) -> list[str]:
    pairs = {"on": on, "command": command, **more}
    return [f"hooks.{name}.{key}={json.dumps(value)}" for key, value in pairs.items()]


def edit(old: str, new: str) -> dict:  # type: ignore[type-arg]
    return call("edit", {"path": "a.py", "old": old, "new": new}, times=1)


async def test_each_event_reaches_its_hook(workspace: Path) -> None:
    (workspace / "a.py").write_text("x = 1\n")
    events = ("session_start", "before_tool", "after_tool", "after_edit", "turn_end")
    options = [o for e in events for o in hook(e.replace("_", "-"), e, "cat >> sub/seen; echo >> sub/seen")]
    async with serving([edit("x = 1", "x = 2"), {**say("One."), "times": 1}, say("Two.")]) as server:
        async with agent_on(server, workspace, QUIET, *options) as watch:
            await watch.turn("go")
            await watch.turn("again")
    seen = [json.loads(line) for line in (workspace / "sub/seen").read_text().splitlines()]
    assert [entry["event"] for entry in seen] == [*events[:2], "after_edit", "after_tool", "turn_end", "turn_end"]
    assert seen[1]["tool"] == "edit" and json.loads(seen[1]["arguments"])["new"] == "x = 2"
    assert seen[2]["path"] == "a.py" and seen[3]["ok"] is True
    assert (seen[4]["text"], seen[4]["turn"], seen[5]["turn"]) == ("One.", 1, 2)
    assert not [told for told in watch.of(Warned) if "hook" in told.message]


async def test_a_call_is_not_made_when_a_hook_says_no_fails_or_takes_too_long(workspace: Path) -> None:
    refusing = hook("guard", "before_tool", 'case $FULGUR_TOOL in shell) echo "not today"; exit 3;; esac')
    slow = hook("slow", "before_tool", "sleep 60", tools=["read"], timeout_sec=0.3)
    (workspace / "a.py").write_text("x = 1\n")
    replies = [call("shell", {"command": "touch made"}, times=1), call("read", {"path": "a.py"}, times=1)]
    async with serving([*replies, edit("x = 1", "x = 2"), say("ok")]) as server:
        async with agent_on(server, workspace, QUIET, *refusing, *slow) as watch:
            await watch.turn("go")
    first, second, third = watch.of(ToolFinished)
    assert not first.ok and first.output == "The hook guard does not allow this call: not today"
    assert not second.ok and "timed out after 0.3 s" in second.output
    assert third.ok and (workspace / "a.py").read_text() == "x = 2\n"
    assert not (workspace / "made").exists()


async def test_what_hooks_find_and_change_goes_to_the_model(workspace: Path) -> None:
    (workspace / "a.py").write_text("x = 1\n")
    options = [
        *hook("format", "after_edit", 't=$(tr -s " " < "$FULGUR_PATH"); echo "$t" > "$FULGUR_PATH"', files=["*.py"]),
        *hook("lint", "after_edit", "echo a.py:1: too plain; exit 1", files=["a*"]),
        *hook("never", "after_edit", "exit 1", files=["*.txt"]),
        *hook("done", "turn_end", 'grep -q finished a.py || { echo "say finished in a.py"; exit 1; }'),
        *hook("hello", "session_start", "echo the branch is main"),
    ]
    replies = [edit("x = 1", "x   =  2"), {**say("Done."), "times": 1}, edit("x = 2", "finished = 2"), say("Now.")]
    async with serving(replies) as server:
        async with agent_on(server, workspace, QUIET, *options) as watch:
            end = await watch.turn("go")
            said = [item_text(item) for item in watch.agent.state.history.everything() if item["type"] == "message"]
            own = [item_text(item) for item in watch.agent.state.history.everything() if is_said(item)]
    assert isinstance(end, TurnDone) and end.text == "Now." and (workspace / "a.py").read_text() == "finished = 2\n"
    first = watch.of(ToolFinished)[0].output
    assert "[Hook lint, a.py] a.py:1: too plain" in first and "never" not in first
    assert "[A hook changed a.py after your edit]" in first and "-x   =  2\n+x = 2\n" in first
    assert [change.new for change in watch.of(FileChanged)][:2] == ["x   =  2\n", "x = 2\n"]
    assert any("the branch is main" in text for text in said) and any("say finished in a.py" in text for text in said)
    assert own == ["go"]  # what hooks say is not taken for the person's words
    assert any("too plain" in warned.message for warned in watch.of(Warned))


async def test_a_hook_works_in_the_sandbox(workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    options = hook("out", "session_start", f"touch {outside}; touch /usr/fulgur-was-here")
    async with serving([say("ok")]) as server, agent_on(server, workspace, *options) as watch:
        await watch.turn("go")
    assert not outside.exists() and any("hook out (session_start)" in warned.message for warned in watch.of(Warned))


async def test_a_hook_that_is_not_whole_stops_the_turn(workspace: Path) -> None:
    async with serving([say("ok")]) as server:
        async with agent_on(server, workspace, "hooks.half.on=turn_end") as watch:
            for _ in range(2):
                end = await watch.turn("go")
                assert isinstance(end, TurnFailed) and end.message == "hooks.half: give both `on` and `command`"


def test_a_projects_hooks_count_when_it_is_trusted(workspace: Path) -> None:
    (workspace / ".fulgur").mkdir()
    (workspace / ".fulgur" / "config.toml").write_text('[hooks.x]\non = "turn_end"\ncommand = "true"\n')
    assert find_hooks(load_settings(workspace)) == []
    load_settings(workspace).records.set_trusted(load_settings(workspace).project, True)
    (found,) = find_hooks(load_settings(workspace))
    assert found.name == "x" and found.source.endswith(".fulgur/config.toml")
    with pytest.raises(UsageError, match="`files` has no effect on turn_end"):
        find_hooks(load_settings(workspace, overrides=['hooks.x.files=["*.py"]']))
