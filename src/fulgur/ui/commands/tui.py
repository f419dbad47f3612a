"""`fulgur` without a command: the terminal UI."""

from __future__ import annotations

import argparse
import asyncio

from fulgur.ui.flags import add_config_flags, need_screen, settings_from
from fulgur.ui.foreign import whole_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the global flags, and which session to resume."""
    add_config_flags(parser)
    parser.set_defaults(prompt="")  # only `fulgur "do this"` has one
    parser.add_argument(
        "--resume", metavar="ID", nargs="?", const="last", help="continue a stored session (the last one without ID)"
    )


def run(args: argparse.Namespace) -> int:
    """Open the screen; return its exit code."""
    need_screen("`fulgur exec PROMPT`")
    settings = settings_from(args)
    if args.resume:
        from fulgur.agent.session.log import find_session

        if any(char.isspace() for char in args.resume):  # `fulgur --resume "go on"`
            args.resume, args.prompt = "last", args.resume
        find_session(settings.home, args.resume, settings.workspace)  # report a wrong name before the screen opens
    from fulgur.ui.tui.app import Tui

    return asyncio.run(Tui(settings, session=args.resume, prompt=whole_text(args.prompt)).run())
