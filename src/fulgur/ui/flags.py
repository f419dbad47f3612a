"""Arguments that several commands share: the config flags (`-m`, `--profile`, `-c`, `-C`), ports, and the need for a
screen."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from fulgur.errors import UsageError
from fulgur.ui.foreign import has_screen

if TYPE_CHECKING:
    from fulgur.config.settings import Settings


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """Add the config flags to a parser."""
    parser.add_argument("-m", "--model", metavar="MODEL", help="the model to use; PROVIDER:NAME for one elsewhere")
    parser.add_argument("-p", "--profile", metavar="NAME", help="use [profiles.NAME] of the config")
    parser.add_argument("-c", "--config", metavar="KEY=VALUE", action="append", default=[], help="set one config key")
    parser.add_argument("-C", "--cd", metavar="DIR", type=folder, help="work in this folder")


def settings_from(args: argparse.Namespace) -> Settings:
    """Load the settings that those flags ask for."""
    from fulgur.config.settings import load_settings

    return load_settings(args.cd, profile=args.profile, model=args.model, overrides=args.config)


def folder(text: str) -> Path:
    """The argparse type of `-C`."""
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text} is not a folder")
    return Path(text)


def at_least_one(text: str) -> int:
    """The argparse type of a count."""
    if not text.strip().isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def port(text: str) -> int:
    """The argparse type of `--port`."""
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port number (0 to 65535)")
    return int(text)


def need_screen(instead: str) -> None:
    """Raise UsageError if no terminal can show a screen; `instead` is the command that needs none."""
    if not has_screen():
        raise UsageError("this needs a terminal, but stdin or stdout is not one", hint=f"{instead} needs none.")
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        raise UsageError("this terminal (TERM=dumb) cannot show a screen", hint=f"{instead} needs none.")
