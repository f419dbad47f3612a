import json
import tomllib
from pathlib import Path

import pytest

from fulgur.agent.loop.commands import Allowed
from fulgur.config.records import ProjectRecords
from fulgur.config.settings import find_project, load_settings
from fulgur.config.toml_text import dump
from fulgur.ui.cli import main


def test_show_names_every_source(home: Path, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "config.toml").write_text('model = "a"\n')
    assert main(["config", "show", "-C", str(project), "-c", "features.guards=false"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["model", '"a"', str(home / "config.toml")] for line in lines)
    assert any(line.split() == ["features.guards", "false", "-c"] for line in lines)
    assert main(["config", "show", "-C", str(project), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["keys"]
    assert {"key": "model", "value": "a", "source": str(home / "config.toml")} in rows


def test_check_fails_with_the_nearest_name(home: Path, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "config.toml").write_text('[profiles.a]\nsandbox_mode = "read-only"\n')
    assert main(["config", "check", "-C", str(project)]) == 0
    (home / "config.toml").write_text('sandbx_mode = "read-only"\n')
    assert main(["config", "check", "-C", str(project)]) == 2
    assert "Did you mean sandbox_mode?" in capsys.readouterr().err


def test_trust(home: Path, project: Path) -> None:
    assert main(["config", "trust", "-C", str(project)]) == 0
    assert load_settings(project).trusted is True
    assert main(["config", "trust", "--no", "-C", str(project)]) == 0
    assert load_settings(project).trusted is False


def test_approvals_can_be_seen_and_forgotten(home: Path, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = find_project(project, home)
    ProjectRecords(home).approve(folder, Allowed(False, beginning=("git", "commit")).encode())
    ProjectRecords(home).approve(folder, Allowed(True, command="git push", folder="/w").encode())
    assert main(["config", "approvals", "-C", str(project)]) == 0
    assert capsys.readouterr().out == "git commit …\ngit push (exactly this, in /w, outside the sandbox)\n"
    assert main(["config", "approvals", "--forget", "-C", str(project)]) == 0
    assert ProjectRecords(home).approved(folder) == []


def test_import_codex(
    home: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codex = tmp_path / "codex"
    codex.mkdir()
    monkeypatch.setenv("CODEX_HOME", str(codex))
    (codex / "config.toml").write_text(
        'model = "gpt-5.3-codex-spark"\nmodel_reasoning_effort = "high"\nnotify = ["say"]\n'
        f'[projects."{project}"]\ntrust_level = "trusted"\n'
        '[mcp_servers.docs]\ncommand = "docs"\nargs = ["--x"]\n[mcp_servers.docs.env]\nA = "1"\n'
    )
    (codex / "deep.config.toml").write_text('model_reasoning_effort = "xhigh"\nmodel_verbosity = "loud"\n')
    assert main(["config", "import", "codex"]) == 0
    out = capsys.readouterr().out
    assert "left out: notify" in out
    assert "left out: profiles.deep.model_verbosity" in out
    settings = load_settings(project, profile="deep")
    assert settings.trusted is True
    assert settings.model == "gpt-5.3-codex-spark"
    assert settings.provider.env_key == "OPENAI_API_KEY"
    assert settings.get("model_reasoning_effort") == "xhigh"
    assert settings.mcp_servers[0].env == {"A": "1"}
    assert main(["config", "import", "codex"]) == 1
    assert main(["config", "import", "codex", "--force"]) == 0
    assert (home / "config.toml.bak").exists()


def test_toml_text_reads_back() -> None:
    table = {"a": 'q"\\\n\x7fü', "n": [1, 2.5, True], "t": {"x.y": {"k": "v"}, "e": {}}}
    assert tomllib.loads(dump(table)) == table
