"""Ways to get something done that a person who wants to be asked was not asked about: subagents, typing, tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent_world import Watch, agent_on, call, needs_sandbox, say, serving

from fulgur.config.records import ProjectRecords
from fulgur.protocol.agent import ApprovalAsked, Decision, GuardReported, TurnDone, TurnStopped

ASK = "approval_policy=untrusted"


async def answered(watch: Watch, prompt: str, answer: Decision) -> list[ApprovalAsked]:
    """One turn with every question answered alike; the questions."""
    since, asked = len(watch.seen), []
    watch.agent.submit(prompt)
    while True:
        event = await watch.until(lambda e: isinstance(e, ApprovalAsked | TurnDone | TurnStopped), since)
        since = watch.seen.index(event) + 1
        if not isinstance(event, ApprovalAsked):
            await watch.agent.wait()
            return asked
        asked.append(event)
        watch.agent.approve(event.approval_id, answer)


@pytest.fixture
def role(home: Path) -> None:
    (home / "agents").mkdir()
    (home / "agents" / "helper.md").write_text("---\nmodel: other\n---\nHelp.\n")


DELEGATING = [call("delegate", {"role": "helper", "task": "write"}, match="^go", times=1), say("Done.")]


@needs_sandbox
@pytest.mark.parametrize("mode", ["workspace-write", "danger-full-access"])
async def test_a_subagent_is_asked_about(mode: str, role: None, workspace: Path, tmp_path: Path) -> None:
    """Its own calls ask nobody, so the task is asked about, then its changes; and it stays in the sandbox."""
    outside = tmp_path / "outside"
    work = [call("shell", {"command": f"touch inside; touch {outside}"}, times=1), say("Wrote.")]
    for answer, questions in (("deny", 1), ("once", 2)):
        async with serving(DELEGATING, more={"other": work}) as server:
            async with agent_on(server, workspace, ASK, f"sandbox_mode={mode}") as watch:
                asked = await answered(watch, "go", answer)  # type: ignore[arg-type]
        assert len(asked) == questions
        assert asked[0].title == "helper: write" and not asked[0].prefix and "merged" in asked[0].reason
        assert (workspace / "inside").exists() is (questions == 2) and not outside.exists()
    assert asked[1].title == "merge what helper changed: inside"


@needs_sandbox
@pytest.mark.parametrize("mode", ["workspace-write", "danger-full-access"])
async def test_what_is_typed_into_a_command_is_asked_about(mode: str, workspace: Path) -> None:
    replies = [
        call("shell", {"command": "bash", "background": True}, times=1),
        call("shell_job", {"job": "job1", "input": "touch typed\n"}, times=1),
        call("shell_job", {"job": "job1", "wait": 1.0}, times=1),
        say("Done."),
    ]
    async with serving(replies) as server, agent_on(server, workspace, ASK, f"sandbox_mode={mode}") as watch:
        since = len(watch.seen)
        watch.agent.submit("go")
        first = await watch.until(ApprovalAsked, since)
        watch.agent.approve(first.approval_id, "once")
        second = await watch.until(ApprovalAsked, watch.seen.index(first) + 1)
        assert second.title == "job job1 < touch typed\n" and not second.prefix
        watch.agent.approve(second.approval_id, "deny")
        await watch.until(TurnDone, since)
        await watch.agent.wait()
        assert len(watch.of(ApprovalAsked)) == 2 and not (workspace / "typed").exists()


@pytest.mark.parametrize(
    ("overrides", "trusted", "runs"),
    [
        ((), False, True),  # as every command inside the sandbox
        ((ASK,), True, False),
        (("sandbox_mode=danger-full-access",), False, False),
        (("sandbox_mode=danger-full-access",), True, True),
    ],
)
@needs_sandbox
async def test_tests_run_by_themselves_only_where_commands_may(
    overrides: tuple[str, ...], trusted: bool, runs: bool, home: Path, workspace: Path
) -> None:
    (workspace / "a.py").write_text("x = 1\n")
    (workspace / "test_a.py").write_text("import a\nopen('ran', 'w')\ndef test():\n    assert a.x\n")
    if trusted:
        ProjectRecords(home).set_trusted(workspace, True)
    edit: dict[str, Any] = {"path": "a.py", "old": "x = 1", "new": "x = 2"}
    async with serving([call("edit", edit, times=1), say("Done.")]) as server:
        async with agent_on(server, workspace, *overrides) as watch:
            await answered(watch, "go", "once")
            [report] = [event for event in watch.of(GuardReported) if event.check == "tests"]
    assert (workspace / "ran").exists() is runs
    assert bool(report.unchecked) is not runs
