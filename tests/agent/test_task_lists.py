"""Task lists: what waits for what, ticks in the file, parallel work, a kill -9 in the middle, plans."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_world import agent_on, call, hold_delays, say, serving, settings_for
from waiting import PATIENCE, until

from fulgur.agent.crew.crew import Crew
from fulgur.agent.crew.plan import make_plan
from fulgur.agent.crew.run_tasks import TaskRun, alone
from fulgur.agent.crew.tasks import marked, parse_tasks
from fulgur.backends.base import Capabilities
from fulgur.errors import FulgurError, UsageError
from fulgur.protocol import agent as events
from fulgur.ui.cli import main

LIST = """# Work
- [x] [DEEP] design the cache #design
  with a bound
  - [ ] [FAST] rename Store to Cache
    - [ ] [FAST] and its tests
- [ ] write the docs after: #design, 2
* [!] [reviewer] read it all (after: 4)

Not a task: - [ ] this
"""


def test_a_list_is_read() -> None:
    tasks = parse_tasks(LIST, "L")
    assert [(t.number, t.tag, t.text, sorted(t.after), t.mark) for t in tasks] == [
        (1, "DEEP", "design the cache", [], "x"),
        (2, "FAST", "rename Store to Cache", [1], " "),
        (3, "FAST", "and its tests", [2], " "),
        (4, "", "write the docs", [1, 2], " "),
        (5, "reviewer", "read it all", [4], "!"),
    ]
    assert tasks[0].prompt == "design the cache\nwith a bound"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- [ ] a after: 7", "L, line 1: after: there is no task 7"),
        ("- [ ] a after: #b", "after: there is no task #b"),
        ("- [ ] a after: 2\n- [ ] b after: 1", "'a' waits for itself"),
        ("- [ ] a after: 2\n  - [ ] b", "'a' waits for itself"),
    ],
)
def test_what_is_wrong_with_a_list_is_said(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_tasks(text, "L")


def test_only_the_mark_is_changed() -> None:
    text = "- [ ] same\r\n\ttext\n- [ ] same\n"
    second = parse_tasks(text, "L")[1]
    assert marked(text, second.key, "x") == "- [ ] same\r\n\ttext\n- [x] same\n"
    assert marked("something else\n", second.key, "x") == "something else\n"


def adding(*names: str, delay: float = 0.0) -> list[dict[str, Any]]:
    """A model that writes the file a task names."""
    replies: list[dict[str, Any]] = [say("Written.", after="function_call_output")]
    for name in names:
        patch = f"*** Begin Patch\n*** Add File: {name}.txt\n+{name}\n*** End Patch"
        steps = [{"delay": delay}, {"call": "apply_patch", "arguments": {"patch": patch}}]
        replies.append({"match": rf"write {name}\b", "steps": steps})
    return replies


class Run:
    """A run on a scripted server, and what it told."""

    def __init__(self) -> None:
        self.seen: list[events.AgentEvent] = []

    async def of(self, path: Path, base_url: str, *overrides: str, jobs: int = 4) -> bool:
        settings = settings_for(base_url, path.parent, "features.guards=false", *overrides)
        with alone(settings, path) as (files, copies):
            crew = Crew(settings, files, self.seen.append, copies=copies)
            try:
                return await TaskRun(crew, path, self.seen.append, jobs).run()
            finally:
                await crew.close()

    def finished(self) -> dict[str, events.MemberFinished]:
        return {event.member: event for event in self.seen if isinstance(event, events.MemberFinished)}


async def test_tags_choose_the_model_and_what_waits_comes_later(workspace: Path) -> None:
    path = workspace / "TASKS.md"
    path.write_text("- [ ] [FAST] write a\n  - [ ] [DEEP] write b\n- [x] write never\n- [ ] write c after: 2\n")
    names = adding("a", "b", "c")
    run = Run()
    async with serving(names, more={"deep": names}) as server:
        assert await run.of(path, server.base_url, "model=m", "router.fast=m", "router.deep=deep")
    assert path.read_text() == (
        "- [x] [FAST] write a\n  - [x] [DEEP] write b\n- [x] write never\n- [x] write c after: 2\n"
    )
    assert [(workspace / f"{name}.txt").read_text() for name in "abc"] == ["a\n", "b\n", "c\n"]
    assert {name: done.models for name, done in run.finished().items()} == {
        "task-1": ("m",),
        "task-2": ("deep",),
        "task-4": ("deep",),  # no tag: the rules decide
    }
    order = [event.member for event in run.seen if isinstance(event, events.MemberStarted)]
    assert order == ["task-1", "task-2", "task-4"]


async def test_a_failure_is_marked_and_holds_back_only_what_waits_for_it(workspace: Path) -> None:
    path = workspace / "TASKS.md"
    path.write_text("- [ ] fails\n  - [ ] write a\n- [ ] write b\n")
    broken = {"match": "fails", "steps": [{"fail": "out of memory"}]}
    run = Run()
    none = "model_providers.test.request_max_retries=0"
    async with serving([broken, *adding("a", "b")]) as server:
        assert not await run.of(path, server.base_url, none)
        assert path.read_text() == "- [!] fails\n  - [ ] write a\n- [x] write b\n"
        assert not (workspace / "a.txt").exists()
        path.write_text(path.read_text().replace("fails", "write c"))
    async with serving(adding("a", "c")) as server:
        assert await run.of(path, server.base_url)  # the mended list goes on where it was
    assert path.read_text() == "- [x] write c\n  - [x] write a\n- [x] write b\n"


async def test_a_task_that_led_to_no_edit_is_not_done(workspace: Path) -> None:
    path = workspace / "TASKS.md"
    path.write_text("- [ ] reformat code.py\n")
    (workspace / "code.py").write_text("x = 1\n")
    run = Run()
    edits = Capabilities(context=2048, chat=False, tools=False, edit=True)
    async with serving([say("<|noedit|>")], capabilities=edits) as server:
        assert not await run.of(path, server.base_url)
    assert path.read_text() == "- [!] reformat code.py\n"
    assert run.finished()["task-1"].how == "failed"


async def test_a_conflict_is_worked_again_on_the_new_state(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = workspace / "TASKS.md"
    path.write_text("- [ ] first edit\n- [ ] second edit\n")
    (workspace / "n.txt").write_text("0\n")
    replies = [
        say("Done.", after="function_call_output"),
        call("shell", {"command": "sed -i s/$/1/ n.txt"}, match="first edit"),
        {
            "match": "second edit",
            "steps": [{"delay": 1}, {"call": "shell", "arguments": {"command": "sed -i s/$/2/ n.txt"}}],
        },
    ]
    hold_delays(monkeypatch, lambda: until(lambda: (workspace / "n.txt").read_text() != "0\n"))
    run = Run()
    async with serving(replies) as server:
        assert await run.of(path, server.base_url)
    assert (workspace / "n.txt").read_text() == "012\n"
    ends = [(event.member, event.conflicts) for event in run.seen if isinstance(event, events.MemberFinished)]
    assert ends == [("task-1", ()), ("task-2", ("n.txt",)), ("task-2", ())]


async def test_twelve_tasks_with_a_kill_in_the_middle(home: Path, workspace: Path) -> None:
    names = [f"f{number}" for number in range(12)]
    path = workspace / "TASKS.md"
    path.write_text("".join(f"{'  ' * (number % 2)}- [ ] [FAST] write {name}\n" for number, name in enumerate(names)))
    async with serving(adding(*names, delay=0.15)) as server:
        config = f'model_provider = "t"\nfeatures.guards = false\n[model_providers.t]\nbase_url = "{server.base_url}"\n'
        if "danger" in settings_for(server.base_url, workspace).sandbox_mode:
            config = f'sandbox_mode = "danger-full-access"\n{config}'
        (home / "config.toml").write_text(config)
        command = [sys.executable, "-m", "fulgur", "tasks", "run", "--json", "-j", "3"]
        environment = {**os.environ, "FULGUR_HOME": str(home)}

        async def start() -> asyncio.subprocess.Process:
            return await asyncio.create_subprocess_exec(
                *command, cwd=workspace, env=environment, stdout=asyncio.subprocess.PIPE
            )

        first = await start()
        while path.read_text().count("[x]") < 4:
            await asyncio.sleep(0.01)
        first.send_signal(signal.SIGKILL)
        await first.communicate()
        lines = path.read_text().splitlines()
        ticked = {name for name, line in zip(names, lines, strict=True) if "[x]" in line}
        assert 4 <= len(ticked) < 12
        # Steps are made one at a time, the tick last: a kill inside one leaves at most its file without a tick.
        written = {file.stem for file in workspace.glob("f*.txt")}
        assert ticked <= written and len(written - ticked) <= 1
        second = await start()
        told, _ = await second.communicate()
    assert second.returncode == 0
    assert path.read_text().count("[x]") == 12
    assert {file.stem for file in workspace.glob("f*.txt")} == set(names)
    seen = [json.loads(line) for line in told.splitlines()]
    begun = [event["member"] for event in seen if event["type"] == "member.started"]
    # A kill between a step's last write and its end takes the whole step back: then that task is done anew.
    assert len(begun) == len(set(begun)) and len(begun) in (12 - len(ticked), 13 - len(ticked))
    last = [event for event in seen if event["type"] == "tasks"][-1]
    assert all(task["state"] == "done" for task in last["tasks"])


@pytest.mark.parametrize(("function", "last"), [("rename", "TASKS.md"), ("unlink", ".journal")])
def test_a_step_that_a_kill_cut_is_made_once(home: Path, workspace: Path, function: str, last: str) -> None:
    """Killed between the file and its tick, and between the tick and the step's end."""
    path, file = workspace / "TASKS.md", workspace / "n.txt"
    path.write_text("- [ ] count\n")
    file.write_text("0\n")
    patch = "*** Begin Patch\n*** Update File: n.txt\n@@\n 0\n+1\n*** End Patch"
    replies = [say("Done.", after="function_call_output"), call("apply_patch", {"patch": patch})]

    async def run() -> bool:
        async with serving(replies) as server:
            return await Run().of(path, server.base_url)

    pid = os.fork()
    if pid == 0:
        real = getattr(os, function)

        def dies(*args: Any, **options: Any) -> None:
            if str(args[-1]).endswith(last) and file.read_text() != "0\n":
                os.kill(os.getpid(), signal.SIGKILL)
            real(*args, **options)

        try:
            setattr(os, function, dies)
            asyncio.run(run())
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert file.read_text() == "0\n1\n"
    assert path.read_text() == ("- [ ] count\n" if function == "rename" else "- [x] count\n")
    assert asyncio.run(run())
    assert file.read_text() == "0\n1\n" and path.read_text() == "- [x] count\n"


async def test_a_plan_is_made_by_a_model_that_only_reads(workspace: Path) -> None:
    said = "Here it is:\n\n```\n- [ ] [FAST] write a #a\n  in the root\n- [ ] [DEEP] write b after: #a\n```\nGood luck."
    path = workspace / "TASKS.md"
    told: list[events.AgentEvent] = []
    replies = [call("list", {}, match="two files", after="message", times=1), say(said)]
    async with serving(replies) as server:
        settings = settings_for(server.base_url, workspace)
        with alone(settings, path) as (files, copies):
            crew = Crew(settings, files, told.append, copies=copies)
            tasks = await make_plan(crew, "make two files", path)
            with pytest.raises(FulgurError, match="already exists"):
                await make_plan(crew, "again", path)
            await crew.close()
    assert [task.text for task in tasks] == ["write a", "write b"]
    assert path.read_text() == (
        "# make two files\n\n- [ ] [FAST] write a #a\n  in the root\n- [ ] [DEEP] write b after: #a\n"
    )


async def test_one_run_at_a_time(home: Path, workspace: Path) -> None:
    path = workspace / "TASKS.md"
    settings = settings_for("http://127.0.0.1:9/v1", workspace)
    busy = pytest.raises(FulgurError, match="another run is already working on")
    with alone(settings, path), busy, alone(settings, path):
        pass


def test_a_list_is_shown(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workspace / "L.md").write_text(LIST)
    assert main(["tasks", "show", "L.md", "-C", str(workspace)]) == 0
    assert "☐  4 write the docs  (after 1, 2)\n✗  5 [reviewer] read it all  (after 4)" in capsys.readouterr().out


async def test_a_running_list_is_stopped_like_any_turn(workspace: Path) -> None:
    path = workspace / "TASKS.md"
    path.write_text("- [ ] write a\n- [ ] take long after: 1\n")
    replies = [*adding("a"), {"match": "take long", "steps": [{"tokens": 5000}]}, say("Still here.")]
    async with serving(replies, rate=300) as server, agent_on(server, workspace, "features.guards=false") as watch:
        running = asyncio.create_task(watch.agent.program("/tasks"))
        await watch.until(lambda e: isinstance(e, events.MemberTold) and e.member == "task-2" and e.kind == "text")
        assert watch.agent.members == ["task-2"]
        watch.agent.stop()
        await asyncio.wait_for(running, PATIENCE)
        assert isinstance(watch.seen[-1], events.TurnStopped)
        assert path.read_text() == "- [x] write a\n- [ ] take long after: 1\n"
        assert (await watch.turn("and now?")).text == "Still here."
        await watch.agent.undo()
        assert not (workspace / "a.txt").exists() and "[x]" not in path.read_text()
