"""`fulgur edit`, `complete` and `next` by way of the local server: what they say, and that nothing changes wrongly."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fulgur.model.random import random_model, tiny_config, write_hf_folder
from fulgur.ui.cli import main
from fulgur.workspace.folders import TOKENIZER, embedded_models

SOURCE = b"def load(path):\r\n    data = read(path)\r\n    return data\r\n"
shipped = pytest.mark.skipif(not embedded_models(), reason="this checkout has no embedded model")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    config = tiny_config("fulgur", vocab_size=8192, max_context=1024)
    write_hf_folder(folder, config, random_model(config, 1))
    shutil.copy(TOKENIZER, folder)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The servers that the commands start serve all tests here, and end with them."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "server.toml").write_text("[server]\nport = 0\n")
    yield folder
    for record in folder.rglob("server.json"):
        os.kill(json.loads(record.read_text())["pid"], signal.SIGTERM)


@pytest.fixture(autouse=True)
def here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(home / "edits", ignore_errors=True)
    monkeypatch.setenv("FULGUR_HOME", str(home))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_bytes(SOURCE)
    return path


def test_a_random_model_changes_nothing(file: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["edit", "-m", str(model), "app.py:load", "tidy the data up", "--write"])
    assert code == 1 and file.read_bytes() == SOURCE
    assert "nothing was changed" in capsys.readouterr().err


def test_a_plain_instruction_needs_no_model(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edit", "app.py:load", "rename data to rows", "--write"]) == 0
    shown = capsys.readouterr()
    assert "+    rows = read(path)" in shown.out and "rows" in file.read_text()
    assert "Understood: rename data to rows." in shown.err and "tests not run: this project is not trusted" in shown.err
    assert main(["edit", "app.py:load", "rename nothing to rows"]) == 1
    assert main(["edit", "app.py:load", 'change the string "\udce9" to "x"']) == 1  # bytes of a shell that is no UTF-8
    assert "JSON" not in capsys.readouterr().err
    assert "tokens in" not in shown.err


def test_complete_prints_text_and_speeds(file: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["complete", "-m", str(model), "app.py:2:12", "--max-tokens", "8"]
    assert main(command) == 0  # random weights are sure of nothing
    shown = capsys.readouterr()
    assert shown.out.strip() and "a guess" in shown.err and "(raw " in shown.err and "tokens in" in shown.err
    assert main([*command, "--unsure"]) == 0
    again = capsys.readouterr()
    assert again.out == shown.out and "a guess" not in again.err


def test_wrong_use_is_said_plainly(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edit", "app.py"]) == 2
    assert main(["complete", "app.py:2"]) == 2
    assert main(["edit", "nowhere.py:f", "x"]) == 2
    assert main(["edit", "app.py:nothing", "x"]) == 2
    assert main(["complete", "app.py:2:99"]) == 2
    assert main(["edit", "-m", "no-such-model", "app.py", "x"]) == 2
    assert "there is no column 99" in capsys.readouterr().err


@shipped
def test_the_shipped_model_renames_and_undo_takes_it_back(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edit", "app.py:load", "rename data to rows"]) == 0
    shown = capsys.readouterr()
    assert "-    data = read(path)" in shown.out and "Nothing was written" in shown.err
    assert file.read_bytes() == SOURCE
    assert main(["edit", "app.py:load", "rename data to rows", "--write"]) == 0
    assert file.read_bytes() == SOURCE.replace(b"data", b"rows")
    assert main(["edit", "--undo"]) == 0
    assert file.read_bytes() == SOURCE
    assert main(["edit", "--undo"]) == 1


@shipped
def test_the_shipped_model_repeats_a_change_at_several_places(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    functions = [f"def {name}({name}x):\n    rows = list()\n    return rows + {name}x\n" for name in "abc"]
    file.write_text("\n\n".join(functions))
    assert main(["edit", "app.py:a", "use a literal", "--write"]) == 0
    assert main(["next", "app.py", "--write"]) == 0
    assert file.read_text() == "\n\n".join(functions).replace("list()", "[]")


@shipped
@pytest.mark.parametrize(
    ("other", "servers"),
    [
        ("[models.r]\nbackend = 'local'\npath = '{model}'", 1),  # the embedded models are there beside it
        (f"[[keys]]\nname = 'a'\nsha256 = '{'b' * 64}'", 2),  # it wants a key: the model gets a server of its own
    ],
)
def test_commands_work_beside_a_server_with_settings_of_its_own(
    file: Path, model: Path, other: str, servers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    home = tmp_path / "other"
    home.mkdir()
    (home / "server.toml").write_text(f"[server]\nport = 0\n{other.format(model=model)}\n")
    monkeypatch.setenv("FULGUR_HOME", str(home))
    try:
        assert main(["edit", "app.py:load", "check that path is not None"]) == 0  # not spelled out: the model reads it
        assert "+    assert path is not None" in capsys.readouterr().out
        assert len(list(home.rglob("server.json"))) == servers
    finally:
        for record in home.rglob("server.json"):
            os.kill(json.loads(record.read_text())["pid"], signal.SIGTERM)


def test_next_without_a_change_says_so(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["next", "app.py"]) == 1
    assert "no earlier version" in capsys.readouterr().err


def test_refactorings_by_name_and_in_plain_words(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = SOURCE.replace(b"read(path)", b"str(path)")
    file.write_bytes(source)
    (tmp_path / "user.py").write_text("from app import load\n\nprint(load)\n")
    assert main(["refactor", "move", "app.py:load", "reading.py"]) == 0
    shown = capsys.readouterr()
    assert "+from reading import load" in shown.out and "Checked: parses" in shown.err and file.read_bytes() == source
    assert main(["edit", "app.py:load", "move load to reading.py", "--write"]) == 0
    assert "Understood: move load to reading.py, with its imports." in capsys.readouterr().err
    assert (tmp_path / "reading.py").read_text().startswith("def load(path):\n")
    assert (tmp_path / "user.py").read_text() == "from reading import load\n\nprint(load)\n"
    assert main(["edit", "--undo"]) == 0
    assert file.read_bytes() == source and not (tmp_path / "reading.py").exists()
    # The old module goes on to use it: what it imports is written with it.
    for target in ("reading.py", "there.py"):
        file.write_bytes(source + b"\r\n\r\nprint(load(1))\r\n")
        (tmp_path / "there.py").write_text("X = 1\n")
        assert main(["refactor", "move", "app.py:load", target, "--write"]) == 0
        assert file.read_text().startswith(f"from {target[:-3]} import load\n")


def test_the_help_of_refactor_says_which_place_each_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["refactor", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "extract FILE:A-B NAME inline FILE[:NAME] VARIABLE" in told and "rename FILE:NAME NEW" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["rename", "app.py", "x"], "names no symbol"),
        (["rename", "app.py:load"], "rename takes NEW after the place"),
        (["async", "app.py:load", "--write"], "user.py:3 load is used as a value"),
    ],
    ids=["no symbol", "no name", "in the way"],
)
def test_a_refactoring_that_is_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    (tmp_path / "user.py").write_text("from app import load\n\nprint(load)\n")
    assert main(["refactor", *words]) in (1, 2)
    assert told in capsys.readouterr().err and file.read_bytes() == SOURCE


@shipped
def test_the_demo_shows_what_the_model_is_sure_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    told = capsys.readouterr()
    assert "file)" in told.out.splitlines() and "+def total(prices, basket, discount=0, tax=0):" in told.out
    assert "a guess" not in told.err
