"""Worktrees and copies of a hostile project: nothing of it runs, and nothing is read or written through its links."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import needs_sandbox
from repositories import git

from fulgur.agent.host import worktree
from fulgur.config.settings import load_settings
from fulgur.edit.checks.tests import copy_with
from fulgur.edit.checks.trial import try_out
from fulgur.errors import FulgurError
from fulgur.sandbox.git import add_worktree, remove_worktree
from fulgur.sandbox.git_merge import bring, commit_all, merge
from fulgur.workspace import copies, ignore
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.files import Change


@pytest.fixture
def repository(workspace: Path) -> Path:
    git(workspace, "init", "-q")
    (workspace / "a.py").write_text("1\n\n\n\n5\n")
    (workspace / ".gitattributes").write_text("*.py filter=one merge=two diff=three\n")
    git(workspace, "add", "-A")
    git(workspace, "commit", "-qm", "first")
    return workspace


@pytest.mark.parametrize(
    "condition", ["onbranch:fulgur/**", "gitdir:**/worktrees/**", "gitdir/i:**/WORKTREES/**", "onbranch:*"]
)
@pytest.mark.parametrize("worktree_config", [False, True])
def test_programs_that_only_the_worktrees_configuration_names(
    condition: str, worktree_config: bool, repository: Path, tmp_path: Path
) -> None:
    ran, folder = tmp_path / "ran", tmp_path / "tree"
    program = repository / ".git" / "evil.sh"
    program.write_text(f"#!/bin/sh\necho $0 $* >> {ran}\ncat\n")
    program.chmod(0o755)
    named = (
        f'[filter "one"]\n\tsmudge = {program}\n\tclean = {program}\n\tprocess = {program}\n\trequired = true\n'
        f'[merge "two"]\n\tdriver = {program} %O %A %B\n[diff "three"]\n\ttextconv = {program}\n\tcommand = {program}\n'
        f"[core]\n\tfsmonitor = {program}\n\thooksPath = {repository}/.git\n[gpg]\n\tprogram = {program}\n"
        "[commit]\n\tgpgSign = true\n"
    )
    (repository / ".git" / "more").write_text(named)
    with (repository / ".git" / "config").open("a") as config:
        config.write(f'[includeIf "{condition}"]\n\tpath = more\n[merge]\n\tdefault = two\n')
    add_worktree(repository, folder, "fulgur/x")
    if worktree_config:
        git(repository, "config", "extensions.worktreeConfig", "true")
        (repository / ".git" / "worktrees" / "tree" / "config.worktree").write_text(named)
    (folder / "a.py").write_text("1\n\n\n\nfive\n")
    commit = commit_all(repository, folder, "theirs")
    (repository / "b.py").write_text("b\n")
    off = ("-c", "filter.one.clean=", "-c", "filter.one.process=", "-c", "filter.one.required=false")
    off += ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "commit.gpgSign=false")
    git(repository, *off, "add", "b.py")
    git(repository, *off, "commit", "-qm", "ours")
    ran.unlink(missing_ok=True)
    bring(repository, folder, "bring")
    (folder / "a.py").write_text("one\n\n\n\nfive\n")
    commit = commit_all(repository, folder, "theirs again")
    assert merge(repository, commit, "merge").commit
    assert (repository / "a.py").read_text() == "one\n\n\n\nfive\n" and (folder / "b.py").exists()
    remove_worktree(repository, folder, "fulgur/x")
    assert not ran.exists(), ran.read_text()


def test_a_file_is_not_copied_through_a_link_of_the_commit(repository: Path, home: Path, tmp_path: Path) -> None:
    """The working tree has plain files where the commit has links: what is copied must not go where they lead."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "rc").write_text("mine\n")
    (repository / ".env").symlink_to(outside / "rc")
    (repository / "data").symlink_to(outside)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "links")
    (repository / ".env").unlink()
    (repository / ".env").write_text("evil\n")
    (repository / "data").unlink()
    (repository / "data").mkdir()
    (repository / "data" / "rc").write_text("evil\n")
    for name, copied in (("one", ".env"), ("two", "data"), ("three", "data/rc")):
        try:
            made = worktree.make(load_settings(repository, overrides=[f"worktree.copy=['{copied}']"]), name)
        except FulgurError:
            pass
        else:
            assert (made.folder / copied).exists()
        assert (outside / "rc").read_text() == "mine\n" and os.listdir(outside) == ["rc"]


def test_a_session_does_not_work_where_a_link_of_the_commit_leads(repository: Path, home: Path) -> None:
    (repository / "sub").symlink_to("../..")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "link")
    (repository / "sub").unlink()
    (repository / "sub").mkdir()
    with pytest.raises(FulgurError, match="link"):
        worktree.make(load_settings(repository / "sub"), "x")
    assert "fulgur/" not in git(repository, "branch")


@needs_sandbox
def test_a_test_that_puts_a_link_in_place_of_the_edited_file(workspace: Path, tmp_path: Path, home: Path) -> None:
    """What is put back for the run without the edit is not written through it."""
    outside = tmp_path / "rc"
    outside.write_text("mine\n")
    (workspace / "a.py").write_text("x = 1\n")
    (workspace / "pkg").mkdir()
    (workspace / "pkg" / "b.py").write_text("y = 1\n")
    evil = "import os, shutil, a, pkg.b\ndef test():\n"
    evil += f"    os.remove('a.py'); os.symlink({str(outside)!r}, 'a.py')\n"
    evil += f"    shutil.rmtree('pkg'); os.symlink({str(tmp_path)!r}, 'pkg')\n    assert False\n"
    (workspace / "test_a.py").write_text(evil)
    changes = [Change(workspace / name, text, text + b"# more\n") for name, text in (("a.py", b"x = 1\n"),)]
    changes.append(Change(workspace / "pkg" / "b.py", b"y = 1\n", b"y = 2\n"))
    try_out(workspace, changes, home)
    assert outside.read_text() == "mine\n" and not (tmp_path / "b.py").exists()


@pytest.fixture
def swapped(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace whose folder becomes a link out of it just after it was listed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "key").write_text("SECRET\n")
    (workspace / "d").mkdir()
    (workspace / "d" / "key").write_text("plain\n")
    (workspace / "e.py").write_text("x = 1\n")

    def walk(root: Path, **more: int) -> Iterator[os.DirEntry[str]]:
        for entry in list(ignore.walk(root, **more)):  # type: ignore[arg-type]
            if entry.name == "key" and not (workspace / "d").is_symlink():
                (workspace / "d").rename(workspace / "moved")
                (workspace / "d").symlink_to(outside)
            yield entry

    for module in ("fulgur.workspace.copies.walk", "fulgur.edit.checks.tests.walk"):
        monkeypatch.setattr(module, walk)
    return workspace


def test_a_copy_for_a_subagent_has_nothing_from_outside(swapped: Path, tmp_path: Path) -> None:
    copy = copies.WorkspaceCopy(swapped, BlobStore(tmp_path / "blobs"), tmp_path)
    try:
        assert (copy.folder / "e.py").exists() and not (copy.folder / "d" / "key").exists()
    finally:
        copy.close()


def test_a_copy_for_tests_has_nothing_from_outside(swapped: Path, tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    assert copy_with(swapped, {}, into)
    assert (into / "e.py").exists() and not (into / "d" / "key").exists()
