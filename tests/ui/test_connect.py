"""`fulgur connect codex`: what it writes, and what it says when the server has nothing for Codex."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.bench.scripted_server import ScriptedServer
from fulgur.ui.cli import main


@pytest.fixture(autouse=True)
def own_homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FULGUR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))


def url_of(server: ScriptedServer) -> str:
    return f"http://127.0.0.1:{server.port}/v1"


def test_the_first_model_that_chats(server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connect", "codex", "--url", url_of(server)]) == 0
    assert "codex -p fulgur" in capsys.readouterr().out
    assert 'model = "scripted"' in (tmp_path / "codex" / "fulgur.config.toml").read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["-m", "nope"], "The server has no model 'nope'.\n  Models: scripted, scripted-2."),
        (["-m", "fulgur-60m"], "fulgur-60m cannot chat and call tools, which Codex needs.\n  Models: scripted,"),
        (["--url", "127.0.0.1:8787"], "127.0.0.1:8787 is not the address of a server.\n  It should look like http://"),
        (["--url", "http://127.0.0.1:9/v1"], "No server answers at http://127.0.0.1:9/v1: Connection refused\n  Is it"),
        (["--url", "{url}/nowhere"], "/nowhere has no list of models (404)\n  Is it a Fulgur server"),
    ],
)
def test_what_is_wrong_is_said(
    server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    given = [word.format(url=url_of(server)) for word in more]
    assert main(["connect", "codex", "--url", url_of(server), *given]) in (1, 2)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "codex").exists()
