from pathlib import Path

import pytest

from fulgur.config.effects import without_effect
from fulgur.config.records import ProjectRecords
from fulgur.config.settings import load_settings
from fulgur.errors import FulgurError, UsageError


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_defaults_have_a_source(home: Path, project: Path) -> None:
    settings = load_settings(project)
    assert settings.sandbox_mode == "workspace-write"
    assert settings.approval_policy == "on-request"
    assert settings.provider.base_url is None
    assert {source for _, _, source in settings.effective()} == {"default"}


def test_every_layer_wins_over_the_one_before(home: Path, project: Path) -> None:
    write(
        home / "config.toml",
        'model = "user"\nmodel_verbosity = "low"\napproval_policy = "never"\nservice_tier = "flex"\n'
        '[profiles.ci]\napproval_policy = "untrusted"\nservice_tier = "fast"\n',
    )
    write(
        project / ".fulgur/config.toml", 'model = "project"\nmodel_verbosity = "high"\napproval_policy = "on-failure"\n'
    )
    ProjectRecords(home).set_trusted(project, True)
    settings = load_settings(project, profile="ci", overrides=["service_tier=priority"])
    sources = {key: (value, source) for key, value, source in settings.effective()}
    assert sources["model"] == ("project", str(project / ".fulgur/config.toml"))
    assert sources["model_verbosity"][0] == "high"
    assert sources["approval_policy"] == ("untrusted", "profile ci")
    assert sources["service_tier"] == ("priority", "-c")
    assert load_settings(project, model="flag").sources[("model",)] == "-m"


def test_project_config_needs_trust(home: Path, project: Path) -> None:
    write(project / ".fulgur/config.toml", 'sandbox_mode = "danger-full-access"\n')
    settings = load_settings(project)
    assert settings.sandbox_mode == "workspace-write"
    assert settings.trusted is None
    assert "not trusted" in settings.warnings[0]
    ProjectRecords(home).set_trusted(project, False)
    assert load_settings(project).sandbox_mode == "workspace-write"
    ProjectRecords(home).set_trusted(project, True)
    assert load_settings(project).sandbox_mode == "danger-full-access"


@pytest.mark.parametrize(
    ("text", "wrong", "near"),
    [
        ('modle = "x"', "modle", "model"),
        ('approval_polcy = "never"', "approval_polcy", "approval_policy"),
        ("[model_providers.mine]\nbase_ulr = 'x'", "model_providers.mine.base_ulr", "model_providers.mine.base_url"),
        ("[profiles.ci]\nsandbox_mod = 'read-only'", "profiles.ci.sandbox_mod", "profiles.ci.sandbox_mode"),
        ("[feature]\nguards = true", "feature", "features"),
        ("[features]\nguard = true", "features.guard", "features.guards"),
    ],
)
def test_misspelt_key_names_the_nearest(home: Path, project: Path, text: str, wrong: str, near: str) -> None:
    write(home / "config.toml", text)
    with pytest.raises(UsageError) as caught:
        load_settings(project)
    assert f"unknown key {wrong} " in caught.value.message
    assert f"Did you mean {near}?" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = 3", "expected a quoted string"),
        ('model_context_window = "big"', "a whole number"),
        ("undo_days = -5", "a whole number of 0 or more"),
        ("features.guards = 1", "true or false"),
        ('sandbox_mode = "workspace-wriet"', "workspace-write"),
        ("model = ", "not valid TOML"),
        ("[profiles.a]\nprofile = 'b'", "unknown key profiles.a.profile"),
    ],
)
def test_wrong_values_say_what_is_wanted(home: Path, project: Path, text: str, words: str) -> None:
    write(home / "config.toml", text)
    with pytest.raises(UsageError) as caught:
        load_settings(project)
    assert words in str(caught.value)


def test_a_config_that_is_a_folder_is_said(home: Path, project: Path) -> None:
    (home / "config.toml").mkdir()
    with pytest.raises(UsageError, match="is not a file"):
        load_settings(project)


@pytest.mark.parametrize(
    ("flag", "key", "value"),
    [
        ("model=gpt-oss", "model", "gpt-oss"),
        ("model=7", "model", "7"),
        ("features.guards=false", "features.guards", False),
        ("sandbox_workspace_write.writable_roots=['/a']", "sandbox_workspace_write.writable_roots", ["/a"]),
        ("model_providers.x.base_url=http://h/v1", "model_providers.x.base_url", "http://h/v1"),
    ],
)
def test_flags(home: Path, project: Path, flag: str, key: str, value: object) -> None:
    assert load_settings(project, overrides=[flag]).get(key) == value


def test_unknown_flag_and_profile(home: Path, project: Path) -> None:
    with pytest.raises(UsageError, match="unknown key moodel"):
        load_settings(project, overrides=["moodel=x"])
    with pytest.raises(UsageError, match="no profile named 'x'"):
        load_settings(project, profile="x")


def test_provider(home: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        home / "config.toml",
        'model_provider = "lab"\n[model_providers.lab]\nbase_url = "http://lab/v1"\nenv_key = "LAB_KEY"\n',
    )
    provider = load_settings(project).provider
    assert provider.base_url == "http://lab/v1"
    monkeypatch.delenv("LAB_KEY", raising=False)
    with pytest.raises(FulgurError, match="LAB_KEY is not set"):
        provider.api_key()
    monkeypatch.setenv("LAB_KEY", "s")
    assert provider.api_key() == "s"
    with pytest.raises(UsageError, match=r"no \[model_providers.nowhere\]"):
        _ = load_settings(project, overrides=["model_provider=nowhere"]).provider


def test_keys_without_effect_are_named(home: Path, project: Path) -> None:
    write(home / "config.toml", 'model_reasoning_effort = "high"\nmodel_verbosity = "low"\n')
    settings = load_settings(project)
    warnings = without_effect(settings, "tiny", {"edit"})
    assert len(warnings) == 2
    assert warnings[0].startswith(
        f"model_reasoning_effort ({home / 'config.toml'}) has no effect: tiny has no reasoning"
    )
    assert without_effect(settings, "big", {"reasoning", "verbosity", "tools"}) == []


def test_approvals_are_kept_per_project(home: Path, tmp_path: Path) -> None:
    records = ProjectRecords(home)
    records.approve(tmp_path / "a", ("git", "status"))
    records.approve(tmp_path / "a", ("git", "status"))
    assert records.approved(tmp_path / "a") == [("git", "status")]
    assert records.approved(tmp_path / "b") == []
    records.set_trusted(tmp_path / "a", True)
    records.forget(tmp_path / "a")
    assert records.approved(tmp_path / "a") == []
    assert records.trusted(tmp_path / "a") is True


def test_switching_profile_and_model_keeps_the_flags(home: Path, project: Path) -> None:
    write(home / "config.toml", '[profiles.fast]\nservice_tier = "fast"\n')
    settings = load_settings(project, overrides=["sandbox_mode=read-only"]).with_changes(profile="fast", model="m")
    assert (settings.get("service_tier"), settings.model, settings.sandbox_mode) == ("fast", "m", "read-only")
