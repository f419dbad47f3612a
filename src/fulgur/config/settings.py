"""The settings of one run: every key typed, each with the source it came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """What the config layers came to; `fulgur.config.load_settings` makes it."""

    workspace: Path
    home: Path


def load_settings(
    workspace: Path | None = None,
    *,
    profile: str | None = None,
    model: str | None = None,
    overrides: list[str] | None = None,
) -> Settings:
    """Merge defaults, `~/.fulgur/config.toml`, the trusted project's, the profile and `-c key=value`; UsageError names what is wrong."""
    raise NotImplementedError
