"""`fulgur attach [ID]`: a session of the host in this terminal; others may show and steer it at the same time."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING, cast

from fulgur.errors import FulgurError
from fulgur.ui.flags import add_config_flags, need_screen, settings_from
from fulgur.ui.foreign import one_row, out

if TYPE_CHECKING:
    from fulgur.agent.agent import Agent
    from fulgur.config.settings import Settings
    from fulgur.protocol.host import SessionInfo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_flags(parser)
    parser.add_argument(
        "session", metavar="ID", nargs="?", help="the session's ID (default: the live session of this folder)"
    )
    parser.add_argument("--list", action="store_true", help="list the sessions of the host and exit")
    parser.add_argument("--new", action="store_true", help="open a new session in the host")


def run(args: argparse.Namespace) -> int:
    settings = settings_from(args)
    if args.list:
        for info in asyncio.run(_sessions(settings, everywhere=True)):
            state = "waiting" if info.waiting else "running" if info.running else "idle"
            when = time.strftime("%d %b %H:%M", time.localtime(info.updated))
            out(f"{info.session}  {state}  {when}  {one_row(info.workspace)}  {one_row(info.title[:60])}")
        return 0
    need_screen("`fulgur attach --list`")
    from fulgur.ui.tui.app import Tui

    return asyncio.run(Tui(settings, session=args.session or _newest(settings, args.new), opener=_open).run())


async def _open(settings: Settings, session: str | None) -> Agent:
    from fulgur.agent.host.remote import RemoteAgent

    return cast("Agent", await RemoteAgent.open(settings, session))


def _newest(settings: Settings, new: bool) -> str | None:
    """The live session of this folder that most needs a person; None for a new one."""
    if new:
        return None
    found = asyncio.run(_sessions(settings, everywhere=False))
    if not found:
        raise FulgurError(f"the host has no live session of {settings.workspace}", hint="`--new` opens one.")
    return found[0].session


async def _sessions(settings: Settings, *, everywhere: bool) -> list[SessionInfo]:
    from fulgur.client.host import HostClient
    from fulgur.protocol.host import SessionInfo

    client = await HostClient(settings.home, starts=False).open()
    try:
        params = {} if everywhere else {"workspace": str(settings.workspace)}
        found = await client.call("session.list", list[SessionInfo], **params)
    finally:
        await client.close()
    return [info for info in found if info.live]
