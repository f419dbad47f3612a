"""The tool loop over the real server with a scripted model."""

import asyncio
from pathlib import Path

import pytest
from agent_world import agent_on, call, say, serving
from waiting import until

from fulgur.agent.loop.compaction import beginning
from fulgur.agent.session.history import item_text, message
from fulgur.errors import FulgurError
from fulgur.protocol.agent import (
    Compacted,
    FileChanged,
    Location,
    MessageDelta,
    PlanChanged,
    QueueChanged,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    TurnDone,
    TurnFailed,
    TurnStarted,
    TurnSteered,
    TurnStopped,
    UsageReported,
    Warned,
)


async def test_plain_answer(workspace: Path) -> None:
    async with serving([say("Hello there.")]) as server, agent_on(server, workspace) as watch:
        end = await watch.turn("hi")
        assert end == TurnDone(turn=1, text="Hello there.")
        assert watch.text == "Hello there."
        assert watch.of(TurnStarted)[0].reason == "m works with tools"
        usage = watch.of(UsageReported)[0]
        assert usage.model == "m" and usage.output_tokens > 0 and usage.context_limit == 200_000


async def test_twelve_steps(workspace: Path) -> None:
    """Read, search, list, patch, edit and run over twelve answers, each output going back to the model."""
    (workspace / "a.py").write_text("def f():\n    return 1\n")
    (workspace / "pkg").mkdir()
    patch = "*** Begin Patch\n*** Update File: a.py\n@@ def f():\n-    return 1\n+    return 2\n*** End Patch"
    steps = [
        call("list", {}),
        call("read", {"path": "a.py"}),
        call("search", {"pattern": "return"}),
        call("apply_patch", {"patch": patch}),
        call("shell", {"command": "X=41; cd pkg"}),
        call("shell", {"command": "echo $((X+1)); pwd"}),
        call("apply_patch", {"patch": "*** Begin Patch\n*** Add File: pkg/b.py\n+y = 1\n*** End Patch"}),
        call("edit", {"path": "pkg/b.py", "old": "y = 1", "new": "y = 2"}),
        call("shell", {"command": "cat b.py; exit 3"}),
        call("read", {"path": "nothing.txt"}),
        call("shell", {"command": "python3 -c 'import sys; sys.path.insert(0, \"..\"); import a; print(a.f())'"}),
        call("search", {"pattern": "y = 2", "glob": "*.py"}),
    ]
    replies = [{**step, "times": 1} for step in steps] + [say("All twelve done.")]

    async with serving(replies) as server, agent_on(server, workspace, "features.quick_tests=false") as watch:
        end = await watch.turn("do it")
        assert isinstance(end, TurnDone), end
        assert end.text == "All twelve done."
        assert len(watch.of(ToolStarted)) == len(watch.of(ToolFinished)) == 12
        outputs = watch.outputs
        assert "a.py" in outputs[0]
        assert "2\t    return 1" in outputs[1]
        assert outputs[2] == "a.py:2:     return 1"
        assert outputs[3] == "modified a.py (+1 -1)"
        assert outputs[5] == f"42\n{workspace}/pkg"
        assert outputs[8].startswith("y = 2\n[exit code 3]")
        assert "No such file" in outputs[9]
        assert outputs[10] == "2"
        assert outputs[11] == "pkg/b.py:1: y = 2"
        changed = watch.of(FileChanged)
        assert [(c.path, c.kind) for c in changed] == [
            ("a.py", "modified"), ("pkg/b.py", "added"), ("pkg/b.py", "modified")
        ]  # fmt: skip
        assert "-    return 1\n+    return 2\n" in changed[0].diff
        kinds = [item["type"] for item in watch.agent.state.history.everything()]
        assert kinds.count("function_call") == kinds.count("function_call_output") == 12


async def test_parallel_calls_run_beside_each_other(workspace: Path) -> None:
    for name in "abc":
        (workspace / name).write_text(f"{name}\n")
    step = {"steps": [{"call": "read", "arguments": {"path": name}} for name in "abc"], "times": 1}

    async with serving([step, say("ok")]) as server, agent_on(server, workspace) as watch:
        await watch.turn("read all")
        kinds = [type(e) for e in watch.seen if isinstance(e, ToolStarted | ToolFinished)]
        assert kinds[:3] == [ToolStarted] * 3
        outputs = {
            item["call_id"]: item["output"]
            for item in watch.agent.state.history.everything()
            if item["type"] == "function_call_output"
        }
        calls = [i for i in watch.agent.state.history.everything() if i["type"] == "function_call"]
        assert [outputs[c["call_id"]] for c in calls] == ["    1\ta", "    1\tb", "    1\tc"]


async def test_malformed_calls_are_fed_back(workspace: Path) -> None:
    (workspace / "a").write_text("x\n")
    replies = [
        call("read", "{not json", times=1),
        call("raed", {"path": "a"}, times=1),
        call("read", {"file": "a"}, times=1),
        call("read", {"path": 3}, times=1),
        call("read", {"path": "a"}, times=1),
        say("got it"),
    ]

    async with serving(replies) as server, agent_on(server, workspace) as watch:
        assert isinstance(await watch.turn("go"), TurnDone)
        outputs = watch.outputs
        assert "not valid JSON" in outputs[0]
        assert "no tool named 'raed'; available: apply_patch" in outputs[1]
        assert '{"path": string, "start"?: integer' in outputs[2]
        assert "Expected `str`, got `int`" in outputs[3]
        assert outputs[4] == "    1\tx"
        assert [e.ok for e in watch.of(ToolFinished)] == [False] * 4 + [True]


async def test_a_model_that_only_makes_malformed_calls_is_stopped(workspace: Path) -> None:
    async with serving([call("nope", {})]) as server, agent_on(server, workspace) as watch:
        end = await watch.turn("go")
        assert isinstance(end, TurnFailed)
        assert "5 malformed calls in a row" in end.message


async def test_steer_at_a_token_keeps_the_partial_answer(workspace: Path) -> None:
    replies = [{"match": "^long", "steps": [{"tokens": 5000}]}, say("In the new direction.", match="shorter")]

    async with serving(replies, rate=400) as server, agent_on(server, workspace) as watch:
        watch.agent.submit("long story")
        await until(lambda: len(watch.text) > 12)
        watch.agent.submit("shorter please")
        end = await watch.until(TurnDone)
        assert end.text == "In the new direction."
        order = [type(e).__name__ for e in watch.seen if isinstance(e, MessageDelta | TurnSteered)]
        cut = order.index("TurnSteered")
        assert 0 < cut < 4000
        said = [(i["role"], item_text(i)) for i in watch.agent.state.history.everything()]
        assert [role for role, _ in said] == ["user", "assistant", "user", "assistant"]
        partial = "".join(
            e.text for e in watch.seen[: watch.seen.index(watch.of(TurnSteered)[0])] if isinstance(e, MessageDelta)
        )
        assert said[1][1] == partial and partial.startswith(" w0000 w0001")
        assert said[2][1] == "shorter please"
        assert watch.text == partial + "In the new direction."


async def test_steer_while_tools_run_is_said_before_the_next_answer(workspace: Path) -> None:
    command = "until [ -e steered ]; do sleep 0.02; done; echo slept"
    replies = [call("shell", {"command": command}, times=1), say("Turned.", match="turn"), say("no")]

    async with serving(replies) as server, agent_on(server, workspace) as watch:
        watch.agent.submit("start")
        await watch.until(ToolStarted)
        watch.agent.steer("turn left")
        (workspace / "steered").touch()
        assert (await watch.until(TurnDone)).text == "Turned."
        assert watch.outputs == ["slept"]
        assert len(watch.of(TurnSteered)) == 1


async def test_queue_runs_after_the_turn(workspace: Path) -> None:
    first = "First." + " and on" * 20
    replies = [say(first, match="one"), say("Second.", match="two"), say("Third.", match="three")]

    async with serving(replies, rate=100) as server, agent_on(server, workspace) as watch:
        watch.agent.submit("one")
        await watch.until(MessageDelta)
        watch.agent.queue("two")
        watch.agent.queue("three")
        await watch.until(lambda e: isinstance(e, TurnDone) and e.turn == 3)
        assert [e.text for e in watch.of(TurnDone)] == [first, "Second.", "Third."]
        assert [e.prompts for e in watch.of(QueueChanged)] == [("two",), ("two", "three"), ("three",), ()]


async def test_stop_keeps_what_was_said_and_the_queue(workspace: Path) -> None:
    replies = [{"match": "long", "steps": [{"tokens": 5000}]}, say("ok")]

    async with serving(replies, rate=400) as server, agent_on(server, workspace) as watch:
        watch.agent.submit("long")
        await watch.until(MessageDelta)
        watch.agent.queue("later")
        watch.agent.stop()
        end = await watch.until(TurnStopped)
        assert end.text == watch.text != ""
        assert item_text(watch.agent.state.history.everything()[-1]) == watch.text
        await watch.agent.wait()
        assert watch.agent.state.queued == ["later"]
        await watch.turn("go on")
        assert [e.text for e in watch.of(TurnDone)] == ["ok", "ok"]
        assert watch.agent.state.queued == []


async def test_stop_ends_a_running_command(workspace: Path) -> None:
    command = call("shell", {"command": "echo started; sleep 60; echo never"}, times=1)
    async with serving([command, say("ok")]) as server, agent_on(server, workspace) as watch:
        watch.agent.submit("run")
        await watch.until(ToolOutput)
        watch.agent.stop()
        await watch.until(TurnStopped)
        await watch.agent.wait()
        assert watch.agent.state.history.open_calls() == []
        assert (await watch.turn("again")).text == "ok"


async def test_a_failing_model_fails_the_turn_and_keeps_the_text(workspace: Path) -> None:
    broken = {"steps": [{"text": "I will now"}, {"fail": "the engine died"}], "times": 1}

    async with serving([broken, say("fine")]) as server, agent_on(server, workspace) as watch:
        end = await watch.turn("go")
        assert isinstance(end, TurnFailed)
        assert end.text == "I will now"
        assert (await watch.turn("again")).text == "fine"
        roles = [i["role"] for i in watch.agent.state.history.everything()]
        assert roles == ["user", "assistant", "user", "assistant"]


async def test_steer_in_the_middle_of_a_call(workspace: Path) -> None:
    """The call that was being written is never made; the new direction is taken."""
    words = "echo " + "x " * 4000
    replies = [{**call("shell", {"command": words}), "match": "^start"}, say("Turned.", match="turn")]

    async with serving(replies, rate=200) as server, agent_on(server, workspace) as watch:
        watch.agent.submit("start")
        await watch.until(TurnStarted)
        await asyncio.sleep(0.4)
        watch.agent.steer("turn left")
        assert (await watch.until(TurnDone)).text == "Turned."
        assert watch.of(ToolStarted) == []
        kinds = [i["type"] for i in watch.agent.state.history.everything()]
        assert kinds == ["message"] * 3


async def test_prompts_during_a_compaction_start_after_it(workspace: Path) -> None:
    replies = [{"match": "^Summarise", "steps": [{"tokens": 60}]}, say("ok")]
    async with serving(replies, rate=200) as server, agent_on(server, workspace) as watch:
        await watch.turn("one")
        watch.agent.state.add_items([message("assistant", "a long answer " * 300)])
        compacting = asyncio.create_task(watch.agent.compact())
        await until(lambda: server.server.models.entries["m"].backend.running)
        watch.agent.submit("two")
        await compacting
        await watch.until(lambda e: isinstance(e, TurnDone) and e.turn == 2)
        told = [type(e) for e in watch.seen if isinstance(e, QueueChanged | Compacted)]
        assert told == [QueueChanged, Compacted, QueueChanged]
        await watch.agent.wait()
        watch.agent.submit("three")
        with pytest.raises(FulgurError, match="while a turn runs"):
            await watch.agent.undo()


async def test_a_cut_answer_is_said_to_be_cut(workspace: Path) -> None:
    async with serving([{"steps": [{"tokens": 500}]}]) as server:
        async with agent_on(server, workspace, "model_max_output_tokens=20") as watch:
            await watch.turn("go")
            assert any("cut off at the output-token limit" in w.message for w in watch.of(Warned))


async def test_a_patch_typed_into_the_shell_is_a_patch(workspace: Path) -> None:
    typed = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: a.txt\n+$HOME\n*** End Patch\nEOF"

    replies = [call("shell", {"command": typed}, times=1), say("ok")]
    async with serving(replies) as server, agent_on(server, workspace) as watch:
        await watch.turn("go")
        assert watch.outputs == ["added a.txt (+1 -0)"]
        assert watch.of(ToolStarted)[0].title == "add a.txt"
        assert (workspace / "a.txt").read_text() == "$HOME\n"


async def test_events_have_what_an_editor_shows(workspace: Path) -> None:
    """Tool kinds, the files a call names, both texts of a change, and the model's plan."""
    (workspace / "a.py").write_text("x = 1\n")
    steps = [{"step": "change x", "status": "completed"}, {"step": "say so", "status": "in_progress"}]
    replies = [
        call("edit", {"path": "a.py", "old": "x = 1", "new": "x = 2"}, times=1),
        call("update_plan", {"plan": steps}, times=1),
        say("Done."),
    ]
    async with serving(replies) as server, agent_on(server, workspace, "features.quick_tests=false") as watch:
        await watch.turn("change x")
        edit, plan = watch.of(ToolStarted)
        assert (edit.kind, edit.places) == ("edit", (Location("a.py"),)) and plan.kind == "think"
        [changed] = watch.of(FileChanged)
        assert (changed.old, changed.new, changed.call_id) == ("x = 1\n", "x = 2\n", edit.call_id)
        [told] = watch.of(PlanChanged)
        assert [(step.step, step.status) for step in told.steps] == [
            ("change x", "completed"),
            ("say so", "in_progress"),
        ]
        async with agent_on(server, workspace, session="last") as again:  # and whoever goes on with it is told
            assert (await again.until(PlanChanged)).steps == told.steps
        start = item_text(beginning([], "so far", [], told.steps, 10_000)[0])
        assert "Your plan:\n- [completed] change x\n- [in_progress] say so" in start
