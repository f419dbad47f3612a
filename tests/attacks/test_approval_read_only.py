"""The table of read-only commands: no harmful one passes, and those that pass change and run nothing."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import agent_on, call, needs_sandbox, say, serving
from approval_commands import HARMFUL, HARMLESS

from fulgur.agent.loop.read_only import READ_ONLY_ENVIRONMENT, is_read_only
from fulgur.protocol.agent import ApprovalAsked, ApprovalSettled, ToolFinished
from fulgur.sandbox.choose import Unconfined
from fulgur.sandbox.policy import Policy
from fulgur.tools.environment import command_environment
from fulgur.tools.shell import Shell, ShellArguments


def test_there_are_enough_of_them() -> None:
    assert len(set(HARMFUL)) >= 200 and len(set(HARMLESS)) >= 60


@pytest.mark.parametrize("command", HARMFUL)
def test_harmful_commands_are_asked_about(command: str) -> None:
    assert not is_read_only(command)


@pytest.mark.parametrize("command", HARMLESS)
def test_plain_looking_is_spared(command: str) -> None:
    assert is_read_only(command)


@pytest.fixture
def hostile(workspace: Path) -> Iterator[tuple[Path, Path]]:
    """A repository whose config, hooks and programs all leave a mark when they run."""
    mark = workspace.parent / "ran"
    evil = workspace / "bin" / "evil"
    evil.parent.mkdir()
    evil.write_text(f"#!/bin/sh\necho ran $0 >> {mark}\n")
    evil.chmod(0o755)
    for name in ("ls", "cat", "grep", "git", "sort", "head"):
        shutil.copy(evil, evil.with_name(name))
    (workspace / "sub").mkdir()
    for name in ("a.py", "b.py"):
        (workspace / name).write_text("def f():\n    return 1\n")
    git = ["git", "-C", str(workspace), "-c", "user.name=x", "-c", "user.email=x@x"]
    for words in (["init", "-q"], ["add", "a.py"], ["commit", "-qm", "one"], ["commit", "-qm", "two", "--allow-empty"]):
        subprocess.run([*git, *words], check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"})
    (workspace / ".gitattributes").write_text("* diff=evil filter=evil\n")
    with open(workspace / ".git/config", "a") as config:
        config.write(
            f"[core]\n\tfsmonitor = {evil}\n\tpager = {evil}\n\tsshCommand = {evil}\n\thooksPath = {evil.parent}\n"
            f'[diff]\n\texternal = {evil}\n[diff "evil"]\n\ttextconv = {evil}\n\tcommand = {evil}\n'
            f'[filter "evil"]\n\tclean = {evil}\n\tsmudge = {evil}\n[gpg]\n\tprogram = {evil}\n'
            f"[log]\n\tshowSignature = true\n[format]\n\tpretty = %G? %H\n[pager]\n\tlog = {evil}\n\tbranch = {evil}\n"
            f"[column]\n\tui = always\n"
        )
    (workspace / ".git/hooks/post-index-change").write_text(evil.read_text())
    (workspace / ".git/hooks/post-index-change").chmod(0o755)
    yield workspace, mark


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(folder.rglob("*")) if p.is_file()}


async def test_what_is_spared_changes_and_runs_nothing(hostile: tuple[Path, Path], home: Path) -> None:
    """Run without any sandbox underneath, so that nothing else could have prevented it."""
    workspace, mark = hostile
    environment = command_environment("all", [], {"PATH": f"{workspace}/bin:.:{os.environ['PATH']}"})
    shell = Shell(Unconfined(), Policy.make("workspace-write", workspace, home), environment)
    try:
        # What an earlier command left behind in the session's shell has no say.
        before = (
            f"ls() {{ echo fn >> {mark}; }}; cat() {{ echo fn >> {mark}; }}; alias git=./bin/evil; export PATH=./bin"
        )
        await shell.run(ShellArguments(command=before), lambda text: None)
        state = contents(workspace)
        for command in HARMLESS:
            arguments = ShellArguments(command=command, timeout=20.0)
            await shell.run_read_only(arguments, lambda text: None, READ_ONLY_ENVIRONMENT)
            assert not mark.exists(), f"{command}: {mark.read_text()}"
            assert contents(workspace) == state, command
        arguments = ShellArguments(command="git log --oneline")
        log = await shell.run_read_only(arguments, lambda text: None, READ_ONLY_ENVIRONMENT)
        assert log.ok and "one" in log.output  # it did run
        # The traps themselves work: the session's own shell and a plain git spring them.
        await shell.run(ShellArguments(command="ls"), lambda text: None)
        assert mark.read_text() == "fn\n"
        subprocess.run(["git", "-C", str(workspace), "ls-files", "-o"], check=True, stdout=subprocess.DEVNULL)
        assert "evil" in mark.read_text()
    finally:
        shell.close()


async def settled(workspace: Path, command: str, *overrides: str, **more: object) -> tuple[list[object], str]:
    """How one command fares when every question is denied: what was asked or settled, and its output."""
    reply = call("shell", {"command": command, **more}, times=1)
    async with serving([reply, say("ok")]) as server:
        async with agent_on(server, workspace, "features.guards=false", *overrides) as watch:
            watch.agent.submit("go")
            seen = 0
            while not watch.agent.state.turns or not watch.agent.state.turns[-1].ended:
                event = await watch.until(lambda e: True, seen)
                seen += 1
                if isinstance(event, ApprovalAsked):
                    watch.agent.approve(event.approval_id, "deny")
            return [e for e in watch.seen if isinstance(e, ApprovalAsked | ApprovalSettled)], watch.outputs[0]


@needs_sandbox
@pytest.mark.parametrize("policy", ["on-request", "untrusted", "on-failure", "never"])
async def test_leaving_the_sandbox_is_never_free(workspace: Path, tmp_path: Path, policy: str) -> None:
    """Also for what only looks: looking spares a question inside the sandbox, not the door."""
    mark = tmp_path / "outside"
    for command in (f"printf -v 'a[$(touch {mark})]' x", f"touch {mark}", "ls", "cat /etc/hostname"):
        events, output = await settled(workspace, command, f"approval_policy={policy}", unsandboxed=True)
        assert "did not allow" in output and not mark.exists(), command
        if policy == "never":
            assert [type(e) for e in events] == [ApprovalSettled]
        else:
            assert isinstance(events[0], ApprovalAsked) and events[0].outside


@needs_sandbox
async def test_looking_is_spared_inside_only(workspace: Path) -> None:
    events, output = await settled(workspace, "ls -a", "approval_policy=untrusted")
    assert events == [] and "sub" not in output
    events, _ = await settled(workspace, "ls -a", "approval_policy=untrusted", "sandbox_mode=danger-full-access")
    assert len(events) == 2  # there is no sandbox, so it is asked


@needs_sandbox
async def test_a_redefined_program_does_not_look(workspace: Path) -> None:
    """An allowed command may define what it likes; a later `ls` that nobody is asked about is still `ls`."""
    replies = [
        call("shell", {"command": "ls() { echo fooled; }"}, times=1),
        call("shell", {"command": "ls -a"}, times=1),
        say("ok"),
    ]
    async with serving(replies) as server:
        async with agent_on(server, workspace, "features.guards=false", "approval_policy=untrusted") as watch:
            watch.agent.submit("go")
            asked = await watch.until(ApprovalAsked)
            watch.agent.approve(asked.approval_id, "once")
            await watch.agent.wait()
            await watch.until(lambda e: len(watch.of(ToolFinished)) == 2)
            assert "fooled" not in watch.outputs[1] and len(watch.of(ApprovalAsked)) == 1
