"""Fetching from a hub that breaks off, lies and asks for a token."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback_hub import Hub, serving

from fulgur.errors import FulgurError, UsageError
from fulgur.hub import here, pull
from fulgur.hub.catalogue import CATALOGUE, Wanted, find
from fulgur.model import checksums
from fulgur.ui.cli import main

WEIGHTS = bytes(range(256)) * 4096  # 1 MB
FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "original/consolidated.pth": b"left",
    "README.md": b"left",
}
CODER = Wanted("coder", "owner/coder")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("FULGUR_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(pull, "MARGIN", 0)
    with serving(Hub(dict(FILES))) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def get(wanted: Wanted = CODER) -> tuple[Path, list[tuple[int, int]]]:
    seen: list[tuple[int, int]] = []
    folder = pull.fetch(pull.plan(wanted), lambda done, total: seen.append((done, total)))
    return folder, seen


def test_a_model_is_fetched_checked_and_put_in_place(hub: Hub) -> None:
    folder, seen = get()
    assert sorted(path.name for path in folder.iterdir()) == [
        "checksums.json",
        "config.json",
        here.RECORD,
        "model.safetensors",
        "tokenizer.json",
    ]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert (
        seen[-1][0]
        == seen[-1][1]
        == sum(len(FILES[name]) for name in ("config.json", "tokenizer.json", "model.safetensors"))
    )
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert [(model.name, model.repo) for model in here.fetched()] == [("coder", "owner/coder")]


def test_a_broken_connection_is_resumed_where_it_broke(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull.time, "sleep", lambda seconds: None)
    hub.drop_after = 300_000
    folder, _ = get()
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    ranges = [asked for method, path, asked in hub.requests if method == "GET" and path.endswith("model.safetensors")]
    assert len(ranges) >= 4 and all(ranges[1:]), "every further request asks only for what is missing"


def test_what_a_stopped_fetch_left_is_used_by_the_next(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(done: int, total: int) -> None:
        if done > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull.fetch(pull.plan(CODER), stop)
    assert here.fetched() == []
    before = len(hub.requests)
    get()
    again = [path for method, path, _ in hub.requests[before:] if method == "GET" and "config.json" in path]
    assert again == [], "a file that is whole is not fetched twice"


def test_a_damaged_file_is_refused_and_deleted(hub: Hub) -> None:
    hub.damage = "model.safetensors"
    with pytest.raises(FulgurError, match=r"model\.safetensors does not match what the hub announced"):
        get()
    assert here.fetched() == []
    assert not list(here.root().rglob("model.safetensors"))


def test_a_small_file_is_checked_by_its_git_hash(hub: Hub) -> None:
    hub.damage = "config.json"
    with pytest.raises(FulgurError, match=r"config\.json does not match what the hub announced"):
        get()


@pytest.mark.parametrize("claimed", [len(WEIGHTS) + 500, len(WEIGHTS) - 500])
def test_a_hub_that_lies_about_a_size_is_found_out(hub: Hub, claimed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(pull, "TRIES", 2)
    hub.promise["model.safetensors"] = claimed
    with pytest.raises(FulgurError, match=r"model\.safetensors (stopped after|does not match what)"):
        get()
    assert here.fetched() == []


def test_a_gated_model_says_what_to_do(hub: Hub) -> None:
    hub.token, hub.gated = "secret", True
    with pytest.raises(FulgurError, match="gated") as caught:
        get()
    assert "HF_TOKEN" in str(caught.value.hint)


def test_a_token_of_the_environment_is_sent(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "secret"
    with pytest.raises(FulgurError, match="no repository owner/coder, or it is private"):
        get()
    monkeypatch.setenv("HF_TOKEN", "secret")
    get()


def test_a_hub_that_does_not_answer_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FulgurError, match=r"127\.0\.0\.1:9 did not answer for owner/coder"):
        get()


def test_too_little_room_is_said_before_anything_is_fetched(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 1000))
    with pytest.raises(FulgurError, match=r"needs 0\.0 GB more"):
        get()
    assert not [path for method, path, _ in hub.requests if "resolve" in path]


def test_a_hub_cannot_write_outside_of_the_folder(hub: Hub) -> None:
    hub.files["../../evil.safetensors"] = b"x"
    with pytest.raises(FulgurError, match="outside the model's folder"):
        get()


def test_one_of_several_gguf_files_has_to_be_named(hub: Hub) -> None:
    hub.files = {"coder-Q4_K_M.gguf": b"four", "coder-Q8_0.gguf": b"eight", "mmproj-F16.gguf": b"eyes"}
    with pytest.raises(UsageError, match="holds 2 GGUF models"):
        get()
    folder, _ = get(find("owner/coder:q4_k_m"))
    assert [path.name for path in folder.glob("*.gguf")] == ["coder-Q4_K_M.gguf"]
    assert here.get("coder-q4_k_m").weights.name == "coder-Q4_K_M.gguf"
    with pytest.raises(UsageError, match="no GGUF file with 'Q2_K'"):
        get(find("owner/coder:Q2_K"))


def test_split_gguf_files_are_one_model() -> None:
    names = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    assert pull.choose(names, CODER) == set(names)


def test_names_of_the_catalogue() -> None:
    assert find(CATALOGUE[0].name.upper()).repo == CATALOGUE[0].repo
    with pytest.raises(UsageError, match="qwen3-coder-30b-a3b"):
        find("qwen3-coder-30b")
    assert len({entry.name for entry in CATALOGUE}) == len(CATALOGUE)


def test_the_command_fetches_lists_and_removes(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "pull", "owner/coder"]) == 1, "its config is no model's: said, not hidden"
    assert "every file checked" in capsys.readouterr().out
    assert main(["models", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["models"]}
    assert rows["fulgur-60m"]["runs"] == "on the CPU"
    assert rows["coder"]["runs"].startswith("no: ")
    assert main(["models", "rm", "coder"]) == 0
    assert main(["models", "rm", "coder"]) == 2
    assert main(["models", "rm", "../models"]) == 2


def test_no_name_removes_more_than_a_model(hub: Hub) -> None:
    get()
    for name in ("..", ".", "", "../models", "coder/.."):
        assert main(["models", "rm", name]) == 2
    assert [model.name for model in here.fetched()] == ["coder"]


def test_a_second_fetch_at_the_same_time_is_refused(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    with here.writing(pull.plan(CODER).part):
        assert main(["models", "pull", "owner/coder"]) == 1
    assert "another process is writing coder" in capsys.readouterr().err
    get()


def test_what_is_here_is_fetched_again_only_when_damaged(hub: Hub) -> None:
    folder, _ = get()
    fetched = len(hub.requests)
    get()
    assert not [path for _, path, _ in hub.requests[fetched:] if "resolve" in path]
    (folder / "model.safetensors").write_bytes(b"\0" + WEIGHTS[1:])
    get()
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_a_name_that_is_taken_is_not_replaced(hub: Hub) -> None:
    get()
    hub.repo = "other/coder"
    with pytest.raises(UsageError, match="coder already exists: it is owner/coder"):
        get(find("other/coder"))
    own = here.root() / "mine"
    own.mkdir()
    with pytest.raises(UsageError, match="mine already exists: it is a folder of your own"):
        get(Wanted("mine", "other/coder"))
    assert own.is_dir()


def test_gguf_files_in_a_folder_of_the_repository_are_found(hub: Hub) -> None:
    hub.files = {"Q8_0/c-Q8_0-00001-of-00002.gguf": b"one", "Q8_0/c-Q8_0-00002-of-00002.gguf": b"two"}
    get()
    model = here.get("coder")
    assert model.weights == model.path / "Q8_0/c-Q8_0-00001-of-00002.gguf"
    assert checksums.check(model.weights, whole=True) == 2
