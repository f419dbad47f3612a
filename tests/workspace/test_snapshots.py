"""Snapshots: what is covered, what is noted, and that unchanged files are not read again."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fulgur.sandbox.policy import Policy
from fulgur.workspace import snapshots
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.files import Files
from fulgur.workspace.snapshots import Snapshots, differences, read_manifest, store_manifest
from fulgur.workspace.undo import restore


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def test_differences(workspace: Path, store: BlobStore) -> None:
    for name in ("same", "changed", "gone", "mode"):
        (workspace / name).write_text(name)
    taker = Snapshots(workspace, store)
    before = taker.take()
    (workspace / "changed").write_text("CHANGED")  # as long as before
    (workspace / "gone").unlink()
    (workspace / "mode").chmod(0o755)
    (workspace / "new").mkdir()
    after = taker.take()
    assert [d.path for d in differences(before, after)] == ["changed", "gone", "mode", "new"]
    assert differences(before, before) == []
    assert store.get(before["changed"].blob) == b"changed"
    assert read_manifest(store_manifest(before, store), store) == before


def test_ignored_folders_are_left_out_but_not_ignored_files(workspace: Path, store: BlobStore) -> None:
    (workspace / ".gitignore").write_text("out/\n*.env\n")
    for name in ("out/x", "node_modules/y", ".git/z", "a.env", "src/b"):
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text("x")
    assert sorted(Snapshots(workspace, store).take()) == [".gitignore", "a.env", "src", "src/b"]


def test_what_is_too_large_is_named(workspace: Path, store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "LARGEST_FILE", 10)
    (workspace / "big").write_text("x" * 11)
    (workspace / "small").write_text("x")
    taker = Snapshots(workspace, store)
    before = taker.take()
    assert before["big"].kind == "large" and taker.uncovered == ["big (0 MiB) is too large for undo"]
    (workspace / "big").write_text("y" * 12)
    assert [d.path for d in differences(before, taker.take())] == ["big"]
    monkeypatch.setattr(snapshots, "MOST_FILES", 1)
    Snapshots(workspace, store).take()


def test_unchanged_files_are_not_read_again_in_the_next_session(
    workspace: Path, store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "JUST_NOW", 0)
    (workspace / "a").write_text("1")
    (workspace / "b").write_text("2")
    first = Snapshots(workspace, store, tmp_path / "cache").take()
    (workspace / "b").write_text("3")
    stored: list[bytes] = []
    put = store.put
    monkeypatch.setattr(store, "put", lambda data: stored.append(data) or put(data))
    second = Snapshots(workspace, store, tmp_path / "cache").take()
    assert stored == [b"3"]
    assert second["a"] == first["a"] and store.get(second["b"].blob) == b"3"


def test_odd_things_in_a_workspace(workspace: Path, store: BlobStore) -> None:
    os.mkfifo(workspace / "fifo")
    (workspace / "dangling").symlink_to("nowhere")
    (workspace / "loop").symlink_to(".")
    (workspace / "näme\n").write_text("x")
    manifest = Snapshots(workspace, store).take()
    assert {name: entry.kind for name, entry in manifest.items()} == {
        "dangling": "link",
        "loop": "link",
        "näme\n": "file",
    }


def test_a_change_within_the_same_tick_is_seen(workspace: Path, store: BlobStore) -> None:
    taker = Snapshots(workspace, store)
    seen = 0
    for number in range(200):
        (workspace / "f").write_text(f"{number:04d}")
        before = taker.take()
        (workspace / "f").write_text(f"{9999 - number:04d}")
        seen += bool(differences(before, taker.take()))
    assert seen == 200


def test_what_is_beyond_the_limit_is_no_difference(
    workspace: Path, store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file more or less moves the end of what is covered: no undo may delete or bring back the ones there."""
    for number in range(8):
        (workspace / f"d{number}").mkdir()
        for name in "ab":
            (workspace / f"d{number}" / name).write_text(name)
    taker = Snapshots(workspace, store)
    monkeypatch.setattr(snapshots, "MOST_FILES", 14)
    first = taker.take()
    seen = [name for name in first if name.endswith("/a")]
    unseen = {f"d{number}/{name}" for number in range(8) for name in "ab"} - set(first)
    assert seen and unseen
    (workspace / seen[0]).unlink()
    second = taker.take()
    assert unseen & set(second), "another file has come into view"
    assert [d.path for d in differences(first, second)] == [seen[0]]
    assert [d.path for d in differences(second, first)] == [seen[0]]
    assert read_manifest(store_manifest(second, store), store) == second


def test_what_cannot_be_stored_is_not_taken_for_absent(
    workspace: Path, store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "JUST_NOW", 0)
    for name in ("kept", "lost", "lost too"):
        (workspace / name).write_text(name)
    put = store.put

    def full(data: bytes) -> str:
        if data.startswith(b"lost"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return put(data)

    taker = Snapshots(workspace, store)
    with monkeypatch.context() as patch:
        patch.setattr(store, "put", full)
        before = taker.take()
    [told] = taker.uncovered
    assert told.startswith("lost") and told.endswith(" and 1 more cannot be kept for undo: No space left on device")
    files = Files(Policy.make("workspace-write", workspace, store.folder), store, store.folder / "journal")
    after = taker.take()
    assert after["lost"].kind == "file" and taker.uncovered == [], "there is room again"
    restored = restore(files, taker, before, after)
    assert (restored.paths, restored.failed) == ([], [])
    (workspace / "lost").write_text("changed")
    restored = restore(files, taker, before, taker.take())
    assert restored.failed == ["lost: it was too large to be kept, or could not be read"]
    assert (workspace / "lost").read_text() == "changed", "an undo deletes nothing that was there"


def test_a_folder_that_cannot_be_listed_is_not_taken_for_empty(
    workspace: Path, store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "src" / "deep").mkdir(parents=True)
    (workspace / "src" / "deep" / "a").write_text("a")
    scan = os.scandir

    def fails_once(folder: int) -> object:
        if os.readlink(f"/proc/self/fd/{folder}").endswith("/src"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return scan(folder)

    taker = Snapshots(workspace, store)
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", fails_once)
        before = taker.take()
    assert taker.uncovered == ["src cannot be kept for undo: Too many open files"]
    assert differences(before, taker.take()) == []


def test_threads_store_the_same_content_at_once(store: BlobStore) -> None:
    """Subagents do, and the sessions of a host: none of them may lose it."""
    contents = [b"%d" % number * 1000 for number in range(200)]
    with ThreadPoolExecutor(4) as pool:
        named = list(pool.map(lambda _: [store.put(data) for data in contents], range(4)))
    assert all(names == named[0] for names in named)
    assert [store.get(name) for name in named[0]] == contents
    assert not [path for path in store.folder.rglob("*") if path.suffix == ".tmp"]
