"""`fulgur` without a command: the terminal UI."""

from __future__ import annotations

import argparse
import asyncio

from fulgur.ui.flags import add_config_flags, need_screen, settings_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The global flags, and which session to go on with."""
    add_config_flags(parser)
    parser.set_defaults(prompt="")  # `fulgur "do this"` has one
    parser.add_argument(
        "--resume", metavar="ID", nargs="?", const="last", help="go on with a stored session (the last one without ID)"
    )


def run(args: argparse.Namespace) -> int:
    """Open the screen; its exit code."""
    need_screen("`fulgur exec PROMPT`")
    settings = settings_from(args)
    from fulgur.ui.tui.app import Tui

    return asyncio.run(Tui(settings, session=args.resume, prompt=args.prompt).run())
