"""The flags every command that reads the config has: `-m`, `--profile`, `-c`, `-C`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fulgur.config.settings import Settings


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """Add them to a parser."""
    parser.add_argument("-m", "--model", metavar="MODEL", help="the model that answers")
    parser.add_argument("-p", "--profile", metavar="NAME", help="use [profiles.NAME]")
    parser.add_argument("-c", "--config", metavar="KEY=VALUE", action="append", default=[], help="set one config key")
    parser.add_argument("-C", "--cd", metavar="DIR", type=Path, help="work in this folder")


def settings_from(args: argparse.Namespace) -> Settings:
    """The settings those flags ask for."""
    from fulgur.config.settings import load_settings

    return load_settings(args.cd, profile=args.profile, model=args.model, overrides=args.config)
