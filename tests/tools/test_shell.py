"""The shell tool, in every sandbox there is and without one."""

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, wait_until

from fulgur.errors import FulgurError
from fulgur.sandbox import bubblewrap, landlock
from fulgur.sandbox.backend import Probe, Sandbox
from fulgur.sandbox.choose import Unconfined
from fulgur.sandbox.policy import Policy
from fulgur.tools.environment import command_environment
from fulgur.tools.jobs import JobArguments
from fulgur.tools.output import BoundedOutput, plain
from fulgur.tools.shell import Shell, ShellArguments

BACKENDS = {
    "none": (Unconfined, Probe("none", True)),
    "bubblewrap": (bubblewrap.Bubblewrap, bubblewrap.probe()),
    "landlock": (landlock.Landlock, landlock.probe()),
}


@pytest.fixture(params=BACKENDS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    make, probe = BACKENDS[request.param]
    if not probe.usable:
        pytest.skip(f"{probe.name}: {probe.reason}")
    return make()


def using(sandbox: Sandbox, workspace: Path, work: Any) -> None:
    mode = "danger-full-access" if isinstance(sandbox, Unconfined) else "workspace-write"

    async def main() -> None:
        policy = Policy.make(mode, workspace, workspace.parent / "home")  # type: ignore[arg-type]
        shell = Shell(sandbox, policy, command_environment("all", [], {"EXTRA": "1"}))
        coroutine: Coroutine[Any, Any, None] = work(shell)
        try:
            await asyncio.wait_for(coroutine, PATIENCE)
        finally:
            shell.close()
            sandbox.close()

    asyncio.run(main())


async def output(shell: Shell, command: str, **more: Any) -> str:
    return (await shell.run(ShellArguments(command=command, **more), lambda text: None)).output


def test_state_stays_between_commands(sandbox: Sandbox, workspace: Path) -> None:
    (workspace / "sub").mkdir()

    async def work(shell: Shell) -> None:
        assert await output(shell, "cd sub; X=5; f() { echo f$1; }") == "[no output]"
        assert await output(shell, "pwd; echo $X $EXTRA; f 1") == f"{workspace}/sub\n5 1\nf1"
        assert await output(shell, "test -t 1 && echo terminal") == "terminal"

    using(sandbox, workspace, work)


def test_ends_are_told(sandbox: Sandbox, workspace: Path) -> None:
    async def work(shell: Shell) -> None:
        assert await output(shell, "false") == "[exit code 1]"
        assert "[exit code 7]\n[the shell ended with it" in await output(shell, "exit 7")
        assert await output(shell, "echo 'open") != ""
        assert await output(shell, "echo still here") == "still here"
        assert "stopped after 0.3 s" in await output(shell, "echo a; sleep 30", timeout=0.3)
        assert await output(shell, "echo $((40+2))") == "42"

    using(sandbox, workspace, work)


def test_background_jobs(sandbox: Sandbox, workspace: Path) -> None:
    async def work(shell: Shell) -> None:
        begun = await output(shell, "echo ready; read line; echo got $line; sleep 30", background=True)
        assert "[job1 is running]" in begun
        while "ready" not in begun:  # a busy machine takes its time
            begun += (await shell.jobs.look(JobArguments(job="job1", wait=0.3), lambda text: None)).output
        look = JobArguments(job="job1", input="hello\n", wait=0.3)
        while "got hello" not in (await shell.jobs.look(look, lambda text: None)).output:
            look = JobArguments(job="job1", wait=0.3)
        listed = await shell.jobs.look(JobArguments(), lambda text: None)
        assert listed.output.startswith("job1  running for ") and "$ echo ready; read line" in listed.output
        assert "got hello" in shell.jobs.output("job1")
        ended = await shell.jobs.look(JobArguments(job="job1", kill=True, wait=PATIENCE), lambda text: None)
        assert "job1 ended" in ended.output
        with pytest.raises(FulgurError, match="no job named job1"):
            await shell.jobs.look(JobArguments(job="job1"), lambda text: None)
        done = await output(shell, "exit 4", background=True)
        if "[job2 is running]" in done:  # a busy machine takes its time
            done = (await shell.jobs.look(JobArguments(job="job2", wait=PATIENCE), lambda text: None)).output
        assert "[job2 ended: exit code 4]" in done
        heard = asyncio.Event()
        await output(shell, "until [ -e go ]; do sleep 0.02; done; exit 3", background=True)
        shell.jobs.changed = heard.set
        (workspace / "go").touch()
        await heard.wait()  # that it ended by itself is told, and what it said stays until somebody looks
        assert [(job.name, job.running, job.exit_code) for job in shell.jobs.states()] == [("job3", False, 3)]
        await output(shell, "sleep 30", background=True)
        await shell.jobs.stop("job4")
        assert "[job4 ended: killed]" in (await shell.jobs.look(JobArguments(job="job4"), lambda text: None)).output

    using(sandbox, workspace, work)


def test_nothing_is_left_running(sandbox: Sandbox, workspace: Path) -> None:
    marker = f"{os.getpid()}.5151"

    async def work(shell: Shell) -> None:
        await output(shell, f"sleep {marker} & disown; (setsid sleep {marker} &) ; echo x")
        await output(shell, f"sleep {marker}", background=True)

    using(sandbox, workspace, work)

    def left() -> list[int]:
        command = b"sleep\0" + marker.encode() + b"\0"
        return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _command(pid) == command]

    if isinstance(sandbox, Unconfined):
        for pid in left():
            os.kill(pid, 9)  # nothing can hold a process that left its session; the sandboxes do
    wait_until(lambda: not left())


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_live_output_and_long_commands(sandbox: Sandbox, workspace: Path) -> None:
    async def work(shell: Shell) -> None:
        seen: list[str] = []

        def see(text: str) -> None:
            seen.append(text)
            (workspace / "seen").touch()

        await shell.run(ShellArguments(command="echo one; until [ -e seen ]; do sleep 0.02; done; echo two"), see)
        assert "".join(seen) == "one\ntwo\n" and len(seen) >= 2
        assert await output(shell, f"echo {'x' * 150_000} | wc -c") == "150001"
        flood = await output(shell, "seq 1 200000")
        assert len(flood) < 30_000 and flood.startswith("1\n2\n") and flood.endswith("199999\n200000")
        assert "characters left out" in flood

    using(sandbox, workspace, work)


def test_landlock_takes_in_new_top_level_files(workspace: Path) -> None:
    if not landlock.probe().usable:
        pytest.skip("no Landlock")

    async def work(shell: Shell) -> None:
        assert "ermission denied" in await output(shell, "echo x > new.txt")
        (workspace / "new.txt").write_text("")  # as a tool of ours makes it
        assert await output(shell, "echo x > new.txt && cat new.txt") == "x"

    using(landlock.Landlock(mounts=False), workspace, work)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("10%\r50%\r100%\n", "100%\n"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("\x1b]0;title\x07x", "x"),
        ("tab\there", "tab\there"),
    ],
)
def test_plain(raw: str, clean: str) -> None:
    assert plain(raw) == clean


def test_bounded_output_never_cuts_a_character() -> None:
    bounded = BoundedOutput(100)
    data = ("ä" * 500).encode()
    shown = "".join(bounded.feed(data[i : i + 3]) for i in range(0, len(data), 3))
    assert shown == "ä" * 500
    assert bounded.text() == f"{'ä' * 50}\n[… 400 characters left out …]\n{'ä' * 50}"


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    monkeypatch.setenv("OTHER", "1")
    assert "MY_TOKEN" not in command_environment("all", ["*_token"], {})
    assert command_environment("all", [], {})["OTHER"] == "1"
    core = command_environment("core", [], {"A": "b"})
    assert "OTHER" not in core and core["A"] == "b" and core["PAGER"] == "cat" and "PATH" in core
