"""Snapshots: what is covered, what is noted, and that unchanged files are not read again."""

import os
from pathlib import Path

import pytest

from fulgur.workspace import snapshots
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.snapshots import Snapshots, differences, read_manifest, store_manifest


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
