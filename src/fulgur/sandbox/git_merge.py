"""Merges a worktree's changes into the folder it was made from, with git's plumbing commands: no hook, filter, merge
driver, editor or signing program runs.

Nothing is lost on the way. Changes are first committed on the worktree's own branch. The merge is computed without
touching the working tree; if it conflicts, or if the folder has its own changes in the same files, the folder stays as
it is. The order of the last two steps matters: files first, then the branch, so that a kill in between leaves the merge
as staged changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.sandbox.git import no_programs, person, write


@dataclass(frozen=True)
class Merge:
    """`commit` is what the branch points to now; empty if conflicts stopped the merge, or if nothing was new."""

    commit: str = ""
    conflicts: tuple[str, ...] = ()


Git = Callable[..., str]


def commit_all(top: Path, folder: Path, message: str) -> str:
    """Commit everything in a worktree of the repository at `top` on its branch; return the branch's commit."""
    git = _git(top, folder)
    git("add", "--all", "--", ".")
    head, tree = git("rev-parse", "--verify", "HEAD").strip(), git("write-tree").strip()
    if tree == git("rev-parse", "--verify", "HEAD^{tree}").strip():
        return head
    return _advance(git, head, _commit(git, tree, message, head), "commit")


def merge(top: Path, commit: str, message: str) -> Merge:
    """Merge a commit into the branch checked out at `top`, and into its files."""
    git = _git(top, top)
    head = git("rev-parse", "--verify", "HEAD").strip()
    base = git("merge-base", head, commit).strip()
    if base == commit:
        return Merge()
    if marked := _paths(git("diff-tree", "-r", "-z", "--name-only", "-G", "^<<<<<<< ", base, commit)):
        raise FulgurError(f"{', '.join(marked)}: unresolved conflicts (<<<<<<<)", hint="Resolve them first.")
    new = commit
    if base != head:
        tree, conflicts = _merged(git, head, commit)
        if conflicts:
            return Merge(conflicts=conflicts)
        new = _commit(git, tree, message, head, commit)
    git("update-index", "-q", "--refresh", may_fail=True)
    try:
        git("read-tree", "-m", "-u", head, new)
    except FulgurError as error:
        raise FulgurError(
            f"{top} has uncommitted changes in files that the merge would change: {error.message}",
            hint="Commit or stash them there, then merge again. Nothing was changed.",
        ) from None
    return Merge(_advance(git, head, new, "merge"))


def bring(top: Path, folder: Path, message: str) -> Merge:
    """Merge what is committed at `top` into a worktree whose own changes are committed. Where both changed the same
    lines, the worktree's files contain both between markers, and `merge` refuses until they are gone."""
    git = _git(top, folder)
    own = git("rev-parse", "--verify", "HEAD").strip()
    theirs = _git(top, top)("rev-parse", "--verify", "HEAD").strip()
    tree, conflicts = _merged(git, own, theirs)
    new = _commit(git, tree, message, own, theirs)
    git("read-tree", "-m", "-u", own, new)
    return Merge(_advance(git, own, new, "merge"), conflicts)


def _git(top: Path, folder: Path) -> Git:
    """Return git for the repository's folder or one of its worktrees."""
    where = (
        (f"--work-tree={folder}",) if folder == top else (f"--git-dir={_place(top, folder)}", f"--work-tree={folder}")
    )
    off = no_programs(top, folder, *where) | person(top)

    def git(*arguments: str, may_fail: bool = False) -> str:
        return write(top, folder, *where, *arguments, off=off, may_fail=may_fail)

    return git


def _merged(git: Git, one: str, other: str) -> tuple[str, tuple[str, ...]]:
    """Merge two commits; return the tree and the files in conflict."""
    words = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages")
    tree, _, conflicts = git(*words, one, other, may_fail=True).partition("\0")
    return tree, _paths(conflicts)


def _commit(git: Git, tree: str, message: str, *parents: str) -> str:
    named = [word for parent in parents for word in ("-p", parent)]
    return git("commit-tree", "--no-gpg-sign", *named, "-m", message, tree).strip()


def _advance(git: Git, old: str, new: str, what: str) -> str:
    git("update-ref", "-m", f"fulgur: {what}", "HEAD", new, old)
    return new


def _paths(output: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path for path in output.split("\0") if path))


def _place(top: Path, folder: Path) -> Path:
    """Where the repository keeps a worktree's state. Ask the repository: the worktree's own `.git` file is not trusted,
    since anybody may have written it."""
    common = Path(write(top, top, "rev-parse", "--path-format=absolute", "--git-common-dir").strip())
    for place in sorted((common / "worktrees").iterdir()) if (common / "worktrees").is_dir() else ():
        if Path((place / "gitdir").read_text(encoding="utf-8").strip()).parent == folder:
            return place
    raise FulgurError(f"{folder} is not a worktree of {top}")
