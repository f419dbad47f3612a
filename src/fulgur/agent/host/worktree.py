"""A git worktree for one session: created on a separate branch, set up, merged, removed."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from fulgur.config.settings import Settings
from fulgur.errors import FulgurError
from fulgur.sandbox import git, git_merge
from fulgur.workspace import beneath, folders
from fulgur.workspace.beneath import shown

_MOST_COPIED = 256 << 20


@dataclass(frozen=True)
class Worktree:
    """`folder` is where the session works, on `branch`; `workspace` is the folder it was made from."""

    folder: Path
    workspace: Path
    repository: Path
    branch: str


def make(settings: Settings, name: str) -> Worktree:
    """Create a worktree of the workspace's repository at its last commit, with the untracked files that the config
    names."""
    top = git.top_folder(settings.workspace)
    if top is None:
        raise FulgurError(
            f"{settings.workspace} is not in a git repository", hint="A worktree needs a repository with a commit."
        )
    base = _base(settings)
    folder = base / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', top.name)}-{name}"
    branch = f"fulgur/{name}"
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    git.add_worktree(top, folder, branch)
    inside = folder / settings.workspace.relative_to(top)
    try:
        _reach(folder, inside)
        for path in settings.strings("worktree.copy"):
            _copy(top, folder, path)
    except FulgurError:
        git.remove_worktree(top, folder, branch)
        raise
    return Worktree(inside, settings.workspace, top, branch)


def _reach(folder: Path, inside: Path) -> None:
    """Create a folder inside the worktree. Refuse a link in its place: the session would work somewhere else."""
    try:
        with beneath.folder(folder, inside, create=True):
            pass
    except NotADirectoryError:
        raise FulgurError(
            f"{inside.relative_to(folder)} is not a folder in the last commit, but a link or a file"
        ) from None


def of(settings: Settings) -> Worktree | None:
    """The worktree that a stored session works in; None if its workspace was not made here."""
    top = git.top_folder(settings.workspace)
    if top is None or not top.is_relative_to(_base(settings)):
        return None
    try:
        place = Path((top / ".git").read_text(encoding="utf-8").strip().removeprefix("gitdir: "))
        branch = (place / "HEAD").read_text(encoding="utf-8").strip().removeprefix("ref: refs/heads/")
    except (OSError, UnicodeDecodeError):
        return None
    repository = place.parents[2]  # .git/worktrees/NAME
    return Worktree(settings.workspace, repository / settings.workspace.relative_to(top), repository, branch)


def _base(settings: Settings) -> Path:
    """Beside Fulgur's home, not inside it: commands may not write there."""
    return folders.expanded(settings.text("worktree.folder") or settings.home.parent / ".fulgur-worktrees").resolve()


def merge(worktree: Worktree, title: str) -> git_merge.Merge:
    """Commit the worktree and merge it into the folder it was made from; both stay."""
    message = _message(title)
    commit = git_merge.commit_all(worktree.repository, _top(worktree), message)
    return git_merge.merge(worktree.repository, commit, f"Merge {worktree.branch}: {message}")


def bring(worktree: Worktree, title: str) -> git_merge.Merge:
    """Merge the folder's newer changes into the worktree, with conflict markers."""
    git_merge.commit_all(worktree.repository, _top(worktree), _message(title))
    return git_merge.bring(worktree.repository, _top(worktree), f"Merge into {worktree.branch}")


def _message(title: str) -> str:
    return " ".join(title.split())[:72] or "Work of a session"


def remove(worktree: Worktree) -> None:
    """Remove the folder and the branch, with everything that was changed there."""
    git.remove_worktree(worktree.repository, _top(worktree), worktree.branch)


def _top(worktree: Worktree) -> Path:
    """The worktree's top folder: the session may work in a folder below it."""
    folder = worktree.folder
    while git.top_folder(folder) not in (folder, None) and folder != folder.parent:
        folder = folder.parent
    return folder


def _copy(top: Path, folder: Path, path: str) -> None:
    """Copy one file or folder that git does not track; refuse a link that leads out of the repository."""
    source = (top / path).resolve()
    if not source.is_relative_to(top.resolve()) or ".git" in source.relative_to(top.resolve()).parts:
        raise FulgurError(f"worktree.copy: {path} is not in the repository")
    if not source.exists():
        return
    if source.is_dir():
        size = sum(file.stat().st_size for file in source.rglob("*") if file.is_file() and not file.is_symlink())
        if size > _MOST_COPIED:
            raise FulgurError(
                f"worktree.copy: {path} is too large ({size >> 20} MiB)", hint="Use worktree.setup instead."
            )
        found = [path for path in source.rglob("*") if path.is_symlink() or path.is_file()]
    else:
        found = [source]
    for file in found:
        into = folder / file.relative_to(top.resolve())
        try:
            if not file.is_symlink():
                beneath.copy(top.resolve(), file, folder, into)
                continue
            with contextlib.suppress(FileExistsError), beneath.folder(folder, into.parent, create=True) as parent:
                os.symlink(os.readlink(file), into.name, dir_fd=parent)
        except OSError as error:  # such as a link from the commit in its way
            raise FulgurError(f"worktree.copy: {shown(str(into))}: {error.strerror}") from None
