"""`fulgur config import codex`: take over what has the same meaning here, and say what was left out and why."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from fulgur.config import keys, layers
from fulgur.errors import FulgurError, UsageError


@dataclass
class Import:
    """The result of an import: the table to write, projects to trust, and (key, why) left out."""

    table: dict[str, object] = field(default_factory=dict)
    trusted: list[Path] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)


def codex_home() -> Path:
    """`CODEX_HOME`, else `~/.codex`."""
    return Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")


def read_codex(home: Path) -> Import:
    """Read `config.toml` and the `NAME.config.toml` profiles beside it."""
    main = home / "config.toml"
    if not main.is_file():
        raise FulgurError(f"{main} does not exist", hint="Set CODEX_HOME if Codex keeps its config elsewhere.")
    result = Import()
    table = layers.read_toml(main)
    projects = table.pop("projects", {})
    if isinstance(projects, dict):
        for path, entry in projects.items():
            if isinstance(entry, dict) and entry.get("trust_level") == "trusted":
                result.trusted.append(Path(path))
    for file in sorted(home.glob("*.config.toml")):
        profiles = table.setdefault("profiles", {})
        assert isinstance(profiles, dict)
        profiles[file.name.removesuffix(".config.toml")] = layers.read_toml(file)
    _take(table, (), result)
    _name_base_urls(result)
    return result


def _take(table: dict[str, object], above: keys.Path, result: Import) -> None:
    for name, value in table.items():
        path = (*above, name)
        key = keys.find(path)
        if key is not None:
            try:
                keys.check(key, path, value, "codex")
            except UsageError as error:
                result.left_out.append((keys.show(path), error.hint or error.message))
            else:
                _put(result.table, path, value)
        elif isinstance(value, dict) and keys.is_prefix(path):
            _take(value, path, result)
        else:
            result.left_out.append((keys.show(path), "Fulgur has no such key"))


def _put(table: dict[str, object], path: keys.Path, value: object) -> None:
    for part in path[:-1]:
        below = table.setdefault(part, {})
        assert isinstance(below, dict)
        table = below
    table[path[-1]] = value


def _name_base_urls(result: Import) -> None:
    """Spell out Codex's built-in `openai` provider: here every provider names its `base_url`."""
    provider = result.table.get("model_provider", "openai")
    providers = result.table.get("model_providers", {})
    assert isinstance(providers, dict)
    if provider == "openai" and "openai" not in providers and "model" in result.table:
        result.table["model_provider"] = "openai"
        _put(result.table, ("model_providers", "openai", "name"), "OpenAI")
        _put(result.table, ("model_providers", "openai", "base_url"), "https://api.openai.com/v1")
        _put(result.table, ("model_providers", "openai", "env_key"), "OPENAI_API_KEY")
