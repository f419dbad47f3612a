"""Worktrees of sessions: made from a repository that may be hostile, set up, merged, and removed."""

from pathlib import Path

import pytest
from agent_world import call, needs_sandbox, say, serving
from host_world import Seen, client_of, hosting, opening
from repositories import git

from fulgur.agent.host import worktree
from fulgur.errors import FulgurError
from fulgur.protocol.agent import Warned
from fulgur.protocol.host import FileChange, Merged, SessionInfo
from fulgur.sandbox.git import add_worktree
from fulgur.sandbox.git_merge import Merge, commit_all, merge


@pytest.fixture
def repository(workspace: Path) -> Path:
    git(workspace, "init", "-q")
    (workspace / "a.py").write_text("x = 1\n")
    (workspace / ".gitignore").write_text(".env\n")
    (workspace / ".env").write_text("KEY=1\n")
    git(workspace, "add", "-A")
    git(workspace, "commit", "-qm", "first")
    return workspace


@needs_sandbox
async def test_a_session_writes_in_its_own_worktree_which_is_discarded(repository: Path) -> None:
    replies = [call("edit", {"path": "a.py", "old": "x = 1", "new": "x = 2"}, times=1), say("Done.")]
    setup = ("worktree.copy=['.env']", "worktree.setup='echo broken >&2; exit 3'")
    async with serving(replies) as server, hosting(), client_of() as client:
        seen = Seen(await client.attach("session.open", **opening(server, repository, *setup, worktree=True)))
        tree, name = Path(seen.attached.worktree), seen.attached.session
        assert "broken" in (await seen.until(lambda e: isinstance(e, Warned) and "worktree.setup" in e.message)).hint
        await client.submit(name, "change x")
        await seen.ended()
        assert (tree / "a.py").read_text() == "x = 2\n" and (repository / "a.py").read_text() == "x = 1\n"
        assert (tree / ".env").read_text() == "KEY=1\n" and "fulgur/" in git(repository, "branch")
        assert [c.path for c in await client.call("changes.list", list[FileChange], session=name)] == ["a.py"]
        [info] = await client.call("session.list", list[SessionInfo], workspace=str(repository))
        assert info.worktree == str(tree)
        await client.tell("session.close", session=name)
        again, _ = await client.attach(
            "session.open", **opening(server, tree, session=name)
        )  # a host that did not make it knows it too
        assert again.worktree == str(tree)
        await client.tell("session.close", session=name, discard=True)
        assert not tree.exists() and "fulgur/" not in git(repository, "branch")


async def test_no_repository_no_worktree(workspace: Path) -> None:
    async with serving([say("Hi.")]) as server, hosting(), client_of() as client:
        with pytest.raises(FulgurError, match="not in a git repository"):
            await client.attach("session.open", **opening(server, workspace, worktree=True))


def test_making_a_worktree_runs_nothing_of_the_repository(repository: Path, tmp_path: Path) -> None:
    """Hooks, filters (also ones that only the new tree's configuration names), fsmonitor and another working tree."""
    ran, elsewhere = tmp_path / "ran", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.py").write_text("mine\n")
    program = repository / ".git" / "evil.sh"
    program.write_text(f"#!/bin/sh\necho $0 >> {ran}\ncat\n")
    program.chmod(0o755)
    (repository / ".gitattributes").write_text("*.py filter=one\n*.txt filter=two\n")
    (repository / "b.txt").write_text("b\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "second")
    hooks = repository / ".git" / "hooks"
    for name in ("post-checkout", "reference-transaction", "post-index-change"):
        (hooks / name).write_text(program.read_text())
        (hooks / name).chmod(0o755)
    included = repository / ".git" / "more"
    included.write_text(f'[filter "two"]\n\tsmudge = {program}\n\trequired = true\n')
    with (repository / ".git" / "config").open("a") as config:
        config.write(f'[filter "one"]\n\tsmudge = {program}\n\tprocess = {program}\n\trequired = true\n')
        config.write(f'[includeIf "gitdir:**/worktrees/**"]\n\tpath = {included}\n')
        config.write(f"[core]\n\tfsmonitor = {program}\n\tworktree = {elsewhere}\n")
    folder = tmp_path / "tree"
    add_worktree(repository, folder, "fulgur/x")
    assert (folder / "a.py").read_text() == "x = 1\n" and (folder / "b.txt").read_text() == "b\n"
    assert not ran.exists() and (elsewhere / "a.py").read_text() == "mine\n"


@needs_sandbox
async def test_a_worktree_is_merged_and_nothing_is_lost_on_the_way(repository: Path) -> None:
    replies = [
        call("edit", {"path": "a.py", "old": "x = 1", "new": "x = 2"}, times=1),
        say("Done.", times=1),
        call("edit", {"path": "a.py", "old": "x = 2", "new": "x = 3"}, times=1),
        say("Done.", times=1),
        call("shell", {"command": "printf 'x = 4\\n' > a.py"}, match="Resolve the conflicts", times=1),
        say("Resolved."),
    ]
    async with serving(replies) as server, hosting() as listener, client_of() as client:
        seen = Seen(await client.attach("session.open", **opening(server, repository, worktree=True)))
        name, tree = seen.attached.session, Path(seen.attached.worktree)

        async def merge() -> Merged:
            return await client.call("worktree.merge", Merged, session=name)

        async def turn() -> None:
            since = len(seen.events)
            await client.submit(name, "change x")
            await seen.ended(since)

        (repository / "mine.txt").write_text("not committed\n")
        await turn()
        (tree / "new.py").write_text("y = 1\n")
        assert (await merge()).merged
        assert await client.call("changes.list", list[FileChange], session=name) == []
        assert (repository / "a.py").read_text() == "x = 2\n" and (repository / "new.py").exists()
        assert (repository / "mine.txt").read_text() == "not committed\n"
        assert git(repository, "status", "--porcelain") == "?? mine.txt\n"
        assert git(repository, "log", "--format=%s %an").splitlines()[0].startswith("change x")
        assert "already up to date" in (await merge()).text
        # The folder went on meanwhile, elsewhere in the tree: a merge commit.
        git(repository, "add", "-A")
        git(repository, "commit", "-qm", "mine")
        await turn()
        # Not committed, in the same file: refused, and as it was.
        (repository / "a.py").write_text("x = 1  # mine\n")
        with pytest.raises(FulgurError, match="uncommitted changes"):
            await merge()
        assert (repository / "a.py").read_text() == "x = 1  # mine\n"
        git(repository, "commit", "-qam", "conflict")
        head = git(repository, "rev-parse", "HEAD")
        told = await merge()
        assert (told.merged, told.conflicts) == (False, ["a.py"]) and "is unchanged" in told.text
        assert git(repository, "rev-parse", "HEAD") == head and not git(repository, "status", "--porcelain")
        assert (tree / "a.py").read_text() == "x = 3\n"
        # Brought into the worktree, where nobody merges them as they are, and the agent resolves them.
        since = len(seen.events)
        worktree.bring(listener.host.sessions[name].worktree, "mine")
        assert "<<<<<<<" in (tree / "a.py").read_text()
        with pytest.raises(FulgurError, match=r"a\.py: unresolved conflicts"):
            await merge()
        git(tree, "reset", "-q", "--hard", "HEAD~1")
        await client.tell("worktree.resolve", session=name)
        await seen.ended(since)
        assert (await merge()).merged
        assert (repository / "a.py").read_text() == "x = 4\n" and (repository / "mine.txt").exists()
        assert not git(repository, "status", "--porcelain") and "conflict\n" in git(repository, "log", "--format=%s")


def test_merging_runs_nothing_of_the_repository(repository: Path, tmp_path: Path) -> None:
    """Hooks, clean filters, merge drivers, signing; and a `.git` in the worktree that names another repository."""
    ran, folder = tmp_path / "ran", tmp_path / "tree"
    program = repository / ".git" / "evil.sh"
    program.write_text(f"#!/bin/sh\necho $0 >> {ran}\ncat\n")
    program.chmod(0o755)
    (repository / ".gitattributes").write_text("*.py filter=one merge=two\n")
    (repository / "a.py").write_text("1\n\n\n\n5\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "second")
    add_worktree(repository, folder, "fulgur/x")
    for name in ("pre-commit", "commit-msg", "post-commit", "post-merge", "reference-transaction", "post-index-change"):
        (repository / ".git" / "hooks" / name).write_text(program.read_text())
        (repository / ".git" / "hooks" / name).chmod(0o755)
    with (repository / ".git" / "config").open("a") as config:
        config.write(f'[filter "one"]\n\tsmudge = {program}\n\tclean = {program}\n\trequired = true\n')
        config.write(f'[merge "two"]\n\tdriver = {program} %O %A %B\n[commit]\n\tgpgSign = true\n')
        config.write(f"[gpg]\n\tprogram = {program}\n[core]\n\tfsmonitor = {program}\n\teditor = {program}\n")
    (folder / ".git").write_text(f"gitdir: {tmp_path / 'elsewhere'}\n")
    (folder / "a.py").write_text("1\n\n\n\nfive\n")
    commit = commit_all(repository, folder, "theirs")
    assert merge(repository, commit, "merge") == Merge(commit)
    assert (repository / "a.py").read_text() == "1\n\n\n\nfive\n"
    (folder / "a.py").write_text("one\n\n\n\nfive\n")
    commit = commit_all(repository, folder, "theirs again")
    (repository / "a.py").write_text("1\n\n\n\nfive!\n")
    quiet = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "commit.gpgSign=false")
    git(repository, *quiet, "-c", "filter.one.clean=cat", "commit", "-qam", "ours")
    ran.unlink(missing_ok=True)
    assert merge(repository, commit, "merge") == Merge(conflicts=("a.py",))  # its driver is not asked
    assert not ran.exists() and (repository / "a.py").read_text() == "1\n\n\n\nfive!\n"
