"""Who may run what: the four policies, remembered prefixes, and the sandbox underneath."""

from pathlib import Path

import pytest
from agent_world import agent_on, call, needs_sandbox, say, serving

from fulgur.agent.loop.commands import Allowed, covered, to_remember
from fulgur.agent.loop.shell_words import simple_commands
from fulgur.protocol.agent import ApprovalAsked, ApprovalSettled, Decision, ToolFinished, TurnDone, TurnStopped


def words(command: str) -> list[tuple[str, ...]] | None:
    found = simple_commands(command)
    return None if found is None else [part.words for part in found]


def test_words_keep_their_quotes() -> None:
    assert words("git commit -m 'a; b' && echo \"c d\"") == [("git", "commit", "-m", "a; b"), ("echo", "c d")]
    assert words("a'b'\"c\" '' | d 2>&1") == [("abc", ""), ("d",)]
    assert words("git show HEAD~2 2>/dev/null") == [("git", "show", "HEAD~2")]


@pytest.mark.parametrize(
    ("command", "prefix"),
    [
        ("git commit -m 'x y'", ("git", "commit")),
        ("cargo test -p x", ("cargo", "test")),
        ("python -m pytest -q tests/a.py", ("python", "-m", "pytest")),
        ("pytest -q tests", ("pytest",)),
        ("go test ./...", ("go", "test")),
        ("mkdir -p a/b", ("mkdir",)),
    ],
)
def test_what_is_remembered_by_its_beginning(command: str, prefix: tuple[str, ...]) -> None:
    assert to_remember(command, "/w", outside=False).beginning == prefix
    assert to_remember(command, "/w", outside=True) == Allowed(True, command=command, folder="/w")


@pytest.mark.parametrize(
    "command",
    [
        *("git push origin main", "npm run build", "python x.py", "rm -rf build", "./run.sh a", "make test", "a | sh"),
        *("git push && rm -rf /", "echo x > y", "echo $HOME", "pytest -p evil", "git -c a=b commit", "mkdir /etc/x"),
    ],
)
def test_what_is_remembered_word_for_word(command: str) -> None:
    allowed = to_remember(command, "/w", outside=False)
    assert allowed == Allowed(False, command=command, folder="/w") and Allowed.decode(allowed.encode()) == allowed
    assert covered(command, [allowed], "/w", outside=False)
    assert not covered(command, [allowed], "/w", outside=True)
    assert not covered(command, [allowed], "/elsewhere", outside=False)
    assert not covered(f"{command} ", [allowed], "/w", outside=False) or words(command) is not None


@pytest.mark.parametrize(
    ("command", "yes"),
    [
        ("git commit -am z", True),
        ("git commit -m a && ls", True),
        ("pytest -x tests | tail -5", True),
        ("pytest -x tests 2>&1 | tail -5", True),
        ("git commit -m a; rm x", False),
        ("git commit -m $(rm x)", False),
        ("git pull", False),
        ("rm -rf build", True),
        ("ls && rm -rf build", True),
        ("rm -rf build src", False),
        ("rm -rf build > x", False),
        ("cat x | rm -rf build", False),
    ],
)
def test_what_a_memory_covers(command: str, yes: bool) -> None:
    memory = [to_remember(known, "/w", outside=False) for known in ("git commit -m x", "rm -rf build", "pytest -q")]
    assert covered(command, memory, "/w", outside=False) is yes
    assert not covered(command, memory, "/w", outside=True)


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
    assert (question.title, question.prefix) == (f"$ touch {outside}", (f"touch {outside}",))
    assert question.reason == "outside the sandbox; the model says: to see" and question.exact and question.outside
    assert "did not allow" in outputs(events)[0] and not outside.exists()
    events = await outcome(workspace, [asked], "once")
    assert outside.exists()


@needs_sandbox
async def test_always_is_remembered_for_the_project(workspace: Path, tmp_path: Path) -> None:
    again = run(f"touch {tmp_path}/one", unsandboxed=True)
    events = await outcome(workspace, [again, {**say("first"), "times": 1}, again], "always", prompts=2)
    assert sum(isinstance(e, ApprovalAsked) for e in events) == 1
    (tmp_path / "one").unlink()
    # A new session still knows; another project does not, nor does another command.
    await outcome(workspace, [again], None)
    assert (tmp_path / "one").exists()
    await outcome(workspace, [run(f"touch {tmp_path}/two", unsandboxed=True)], "deny")
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "one").unlink()
    await outcome(other, [again], "deny")
    assert not (tmp_path / "one").exists() and not (tmp_path / "two").exists()


@needs_sandbox
async def test_a_yes_inside_is_none_outside(workspace: Path, tmp_path: Path) -> None:
    inside, outside = run("touch sub/a"), run("touch sub/a", unsandboxed=True)
    events = await outcome(workspace, [inside, outside], "always", "approval_policy=untrusted")
    assert [e.outside for e in events if isinstance(e, ApprovalAsked)] == [False, True]
    # Now both are remembered, each for its side.
    await outcome(workspace, [inside, outside], None, "approval_policy=untrusted")


@needs_sandbox
async def test_the_folder_is_shown_and_counts(workspace: Path) -> None:
    command = {"command": "touch a", "unsandboxed": True}
    replies = [call("shell", command, times=1), run("cd sub"), call("shell", command, times=1)]
    asked = [e for e in await outcome(workspace, replies, "always") if isinstance(e, ApprovalAsked)]
    assert len(asked) == 2 and asked[1].reason.startswith(f"in {workspace.resolve()}/sub: ")


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


def patch(old: str, new: str) -> dict:  # type: ignore[type-arg]
    text = f"*** Begin Patch\n*** Update File: a.txt\n@@\n-{old}\n+{new}\n*** End Patch"
    return call("apply_patch", {"patch": text}, times=1)


async def test_an_edit_is_shown_before_it_is_allowed(workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\n")
    events = await outcome(workspace, [patch("one", "curl x | sh")], "deny", "approval_policy=untrusted")
    asked = next(e for e in events if isinstance(e, ApprovalAsked))
    assert "-one\n+curl x | sh\n" in asked.diff and asked.prefix == ("edit", "a.txt")
    assert (workspace / "a.txt").read_text() == "one\n"


async def test_always_is_for_the_files_that_were_shown(workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\n")
    other = call("apply_patch", {"patch": "*** Begin Patch\n*** Add File: b\n+x\n*** End Patch"}, times=1)
    replies = [patch("one", "two"), patch("two", "three"), other]
    asked = [
        e
        for e in await outcome(workspace, replies, "always", "approval_policy=untrusted")
        if isinstance(e, ApprovalAsked)
    ]
    assert [e.prefix for e in asked] == [("edit", "a.txt"), ("edit", "b")]
    assert (workspace / "a.txt").read_text() == "three\n"


async def test_hunks_that_were_left_out_are_told_to_the_model(workspace: Path) -> None:
    (workspace / "a.txt").write_bytes(b"one\r\nkeep\ntwo")
    text = "*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+1\n@@\n-two\n+2\n*** Add File: b\n+x\n*** End Patch"
    async with serving([call("apply_patch", {"patch": text}, times=1), say("ok")]) as server:
        async with agent_on(server, workspace, "features.guards=false", "approval_policy=untrusted") as watch:
            watch.agent.submit("go")
            asked = await watch.until(ApprovalAsked)
            assert [hunk.split("\n")[0] for hunk in asked.hunks] == ["--- a/a.txt", "--- a/a.txt", "--- /dev/null"]
            watch.agent.approve(asked.approval_id, "once", (1, 3, 7))
            await watch.until(TurnDone)
            assert watch.of(ApprovalSettled)[0].rejected == (1, 3)
    assert (workspace / "a.txt").read_bytes() == b"one\r\nkeep\n2" and not (workspace / "b").exists()
    told = watch.outputs[0]
    assert told.startswith("modified a.txt (+1 -1)\nThe person left out 2 of 3 hunks.")
    assert "-one\n+1\n" in told and "+x" in told and "-two" not in told


async def test_all_hunks_left_out_is_a_no(workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\nkeep\ntwo\n")
    text = "*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+1\n@@\n-two\n+2\n*** End Patch"
    async with serving([call("apply_patch", {"patch": text}, times=1), say("ok")]) as server:
        async with agent_on(server, workspace, "features.guards=false", "approval_policy=untrusted") as watch:
            watch.agent.submit("go")
            asked = await watch.until(ApprovalAsked)
            watch.agent.approve(asked.approval_id, "once", (2, 1))
            await watch.until(TurnDone)
            assert watch.of(ApprovalSettled)[0].decision == "deny"
    assert watch.outputs == ["The person did not allow this."]


async def test_a_file_that_changed_while_the_person_read_is_not_touched(workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\n")
    async with serving([patch("one", "two"), say("ok")]) as server:
        async with agent_on(server, workspace, "features.guards=false", "approval_policy=untrusted") as watch:
            watch.agent.submit("go")
            asked = await watch.until(ApprovalAsked)
            (workspace / "a.txt").write_text("zero\none\n")
            watch.agent.approve(asked.approval_id, "once")
            await watch.until(TurnDone)
            assert "changed meanwhile" in watch.outputs[0]
            assert (workspace / "a.txt").read_text() == "zero\none\n"


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
