"""Who may run what: the four policies, remembered prefixes, and the sandbox underneath."""

from pathlib import Path

import pytest
from agent_world import agent_on, call, needs_sandbox, say, serving

from fulgur.agent.loop.commands import covered, only_looks, rememberable_prefix, simple_commands
from fulgur.protocol.agent import ApprovalAsked, ApprovalSettled, Decision, ToolFinished, TurnDone, TurnStopped


@pytest.mark.parametrize(
    ("command", "looks"),
    [
        ("ls -la", True),
        ("cat a.py | head -3", True),
        ("git status && git diff --stat", True),
        ("grep -r 'a b' src", True),
        ("git commit -m x", False),
        ("git diff --output=x", False),
        ("git -c core.pager=evil log", False),
        ("ls > out", False),
        ("ls $(rm x)", False),
        ("ls `rm x`", False),
        ("ls; rm x", False),
        ("cat a & rm x", False),
        ("env FOO=1 rm x", False),
        ("rg --pre=evil x", False),
        ("LD_PRELOAD=x ls", False),
        ("ls\nrm x", False),
        ("find . -delete", False),
        ("", False),
    ],
)
def test_what_only_looks(command: str, looks: bool) -> None:
    assert only_looks(command) is looks


@pytest.mark.parametrize(
    ("command", "prefix"),
    [
        ("git push origin main", ("git", "push")),
        ("npm run build -- --x", ("npm", "run", "build")),
        ("cargo test", ("cargo", "test")),
        ("python -m pytest -q", ("python", "-m", "pytest")),
        ("python x.py", ("python", "x.py")),
        ("rm -rf build", ("rm", "-rf", "build")),
        ("./run.sh a", ("./run.sh", "a")),
        ("pytest -q tests", ("pytest",)),
        ("git push && rm -rf /", ()),
        ("echo x > y", ()),
        ("echo $HOME", ()),
    ],
)
def test_what_is_remembered(command: str, prefix: tuple[str, ...]) -> None:
    assert rememberable_prefix(command) == prefix


@pytest.mark.parametrize(
    ("command", "yes"),
    [
        ("git push --force", True),
        ("git push && ls", True),
        ("git push; rm x", False),
        ("git push $(rm x)", False),
        ("git pull", False),
        ("rm -rf build", True),
        ("rm -rf build src", False),
        ("python -m pytest -x", True),
        ("python -m pip install x", False),
    ],
)
def test_what_a_memory_covers(command: str, yes: bool) -> None:
    memory = [("git", "push"), ("rm", "-rf", "build"), ("python", "-m", "pytest")]
    assert covered(command, memory) is yes


def test_words_keep_their_quotes() -> None:
    assert simple_commands("git commit -m 'a; b' && echo \"c d\"") == [["git", "commit", "-m", "a; b"], ["echo", "c d"]]


async def outcome(  # type: ignore[type-arg]
    workspace: Path, replies: list[dict], answer: Decision | None, *overrides: str, prompts: int = 1
) -> list:
    """Run prompts and give every approval the same answer; all events."""

    async with serving([*replies, say("ok")]) as server:
        async with agent_on(server, workspace, "features.guards=false", *overrides) as watch:
            for number in range(prompts):
                since = len(watch.seen)
                watch.agent.submit(f"prompt {number}")
                while True:
                    event = await watch.until(lambda e: isinstance(e, ApprovalAsked | TurnDone | TurnStopped), since)
                    since = watch.seen.index(event) + 1
                    if not isinstance(event, ApprovalAsked):
                        break
                    assert answer is not None, "nothing should be asked"
                    watch.agent.approve(event.approval_id, answer)
                await watch.agent.wait()
            return watch.seen


def outputs(events: list) -> list[str]:  # type: ignore[type-arg]
    return [e.output for e in events if isinstance(e, ToolFinished)]


def run(command: str, **more: object) -> dict:  # type: ignore[type-arg]
    return call("shell", {"command": command, **more}, times=1)


async def test_on_request_runs_in_the_sandbox_without_asking(workspace: Path) -> None:
    events = await outcome(workspace, [run("echo x > sub/a; cat sub/a")], None)
    assert outputs(events) == ["x"]


@needs_sandbox
async def test_on_request_out_of_the_sandbox_is_asked(workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    asked = run(f"touch {outside}", unsandboxed=True, reason="to see")
    events = await outcome(workspace, [asked], "deny")
    question = next(e for e in events if isinstance(e, ApprovalAsked))
    assert (question.title, question.reason, question.prefix) == (f"$ touch {outside}", "to see", ("touch",))
    assert "did not allow" in outputs(events)[0] and not outside.exists()
    events = await outcome(workspace, [asked], "once")
    assert outside.exists()


@needs_sandbox
async def test_always_is_remembered_for_the_project(workspace: Path, tmp_path: Path) -> None:
    replies = [run(f"touch {tmp_path}/one", unsandboxed=True), {**say("first"), "times": 1}]
    events = await outcome(workspace, [*replies, run(f"touch {tmp_path}/two", unsandboxed=True)], "always", prompts=2)
    assert sum(isinstance(e, ApprovalAsked) for e in events) == 1
    assert (tmp_path / "two").exists()
    # A new session still knows; another project does not.
    await outcome(workspace, [run(f"touch {tmp_path}/three", unsandboxed=True)], None)
    assert (tmp_path / "three").exists()
    other = tmp_path / "other"
    other.mkdir()
    events = await outcome(other, [run(f"touch {tmp_path}/four", unsandboxed=True)], "deny")
    assert not (tmp_path / "four").exists()


async def test_untrusted_asks_for_all_but_looking(workspace: Path) -> None:
    replies = [
        run("ls"),
        run("touch sub/a"),
        call("apply_patch", {"patch": "*** Begin Patch\n*** Add File: b\n+x\n*** End Patch"}, times=1),
    ]
    events = await outcome(workspace, replies, "deny", "approval_policy=untrusted")
    assert sum(isinstance(e, ApprovalAsked) for e in events) == 2
    assert not (workspace / "sub/a").exists() and not (workspace / "b").exists()
    await outcome(workspace, replies, "once", "approval_policy=untrusted")
    assert (workspace / "sub/a").exists() and (workspace / "b").exists()


@needs_sandbox
async def test_on_failure_offers_to_run_outside(workspace: Path) -> None:
    (workspace / ".git").mkdir()
    (workspace / ".git/HEAD").write_text("ref: refs/heads/main\n")
    events = await outcome(workspace, [run("echo x > .git/description")], "once", "approval_policy=on-failure")
    assert "failed in the sandbox" in next(e for e in events if isinstance(e, ApprovalAsked)).reason
    assert (workspace / ".git/description").read_text() == "x\n"
    await outcome(workspace, [run("exit 3")], None, "approval_policy=on-failure")


@needs_sandbox
async def test_never_refuses_without_asking(workspace: Path, tmp_path: Path) -> None:
    events = await outcome(workspace, [run(f"touch {tmp_path}/x", unsandboxed=True)], None, "approval_policy=never")
    settled = next(e for e in events if isinstance(e, ApprovalSettled))
    assert (settled.decision, settled.by) == ("deny", "policy")
    assert not (tmp_path / "x").exists()


@needs_sandbox
async def test_stop_ends_the_turn(workspace: Path) -> None:
    events = await outcome(workspace, [run("touch sub/a", unsandboxed=True)], "stop")
    assert isinstance(events[-1], TurnStopped)


@needs_sandbox
async def test_read_only_refuses_every_write(workspace: Path) -> None:
    (workspace / "a").write_text("1\n")
    patch = "*** Begin Patch\n*** Update File: a\n@@\n-1\n+2\n*** End Patch"
    replies = [run("echo 2 > a; cat a"), call("apply_patch", {"patch": patch}, times=1)]
    events = await outcome(workspace, replies, None, "sandbox_mode=read-only")
    assert "1" in outputs(events)[0] and "the sandbox is read-only" in outputs(events)[1]
    assert (workspace / "a").read_text() == "1\n"


async def test_without_a_sandbox_commands_are_refused_reading_is_not(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fulgur.sandbox import bubblewrap, landlock
    from fulgur.sandbox.backend import Probe

    monkeypatch.setattr(bubblewrap, "probe", lambda: Probe("bubblewrap", False, "`bwrap` is not installed"))
    monkeypatch.setattr(landlock, "probe", lambda: Probe("Landlock", False, "no Landlock"))
    (workspace / "a").write_text("x\n")
    events = await outcome(
        workspace, [run("echo hi"), call("read", {"path": "a"}, times=1)], None, "sandbox_mode=workspace-write"
    )
    assert "no sandbox works here" in outputs(events)[0] and "apt install bubblewrap" in outputs(events)[0]
    assert outputs(events)[1] == "    1\tx"
