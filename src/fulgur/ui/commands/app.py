"""`fulgur app`: the web app of the host, in this machine's browser or by its address."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from fulgur.ui.flags import add_config_flags, settings_from
from fulgur.ui.foreign import out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_flags(parser)
    parser.add_argument("--no-open", action="store_true", help="print the address and open no browser")


def run(args: argparse.Namespace) -> int:
    from fulgur.client.host import app_address
    from fulgur.sandbox import start

    settings = settings_from(args)
    address = asyncio.run(app_address(settings.home, settings.workspace))
    opener = None if args.no_open else _opener()
    out(address)
    if opener is not None:
        start.popen([opener, address], start.ROOT, stdout=start.DEVNULL, stderr=start.DEVNULL, start_new_session=True)
    out("The link works once, for ten minutes. From another machine: ssh -L PORT:127.0.0.1:PORT, with the port above.")
    return 0


def _opener() -> str | None:
    """The program that opens a URL in the person's browser; None if there is no display."""
    from fulgur.sandbox import start

    if sys.platform == "darwin":
        return start.program("open")
    if "WSL_DISTRO_NAME" in os.environ:
        return start.program("wslview")
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return start.program("xdg-open")
    return None
