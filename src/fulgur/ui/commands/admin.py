"""`fulgur admin`: the keys of a server, what each has used, and the schema of its store."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fulgur.errors import FulgurError, UsageError
from fulgur.ui.flags import at_least_one
from fulgur.ui.foreign import out, out_json

if TYPE_CHECKING:
    from fulgur.server.config import ServerConfig
    from fulgur.server.store.base import Store

T = TypeVar("T")
LIMITS = ("requests_per_minute", "tokens_per_minute", "tokens_per_day")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("-f", "--file", type=Path, help="the server's config (default: server.toml in Fulgur's home)")
    shared.add_argument("--json", action="store_true", help="one JSON object a line")
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    keys = commands.add_parser("keys", parents=[shared], help="the keys and their limits; add and revoke keys")
    keys.add_argument("action", nargs="?", choices=["list", "add", "revoke"], default="list")
    keys.add_argument("name", nargs="?", help="the key to add or revoke")
    for name in LIMITS:
        keys.add_argument(f"--{name.replace('_', '-')}", type=_count, default=0, metavar="N", help="limit of a new key")
    usage = commands.add_parser("usage", parents=[shared], help="what each key has used")
    usage.add_argument(
        "--days",
        type=at_least_one,
        default=30,
        metavar="N",
        help="this many days, today included (default %(default)s)",
    )
    migrate = commands.add_parser(
        "migrate", parents=[shared], help="show the version of the store's schema, or migrate it"
    )
    migrate.add_argument("action", nargs="?", choices=["status", "up"], default="status")


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number}: must be at least 0 (0: no limit)")
    return number


def run(args: argparse.Namespace) -> int:
    from fulgur.server import config

    settings = config.load(args.file)
    if args.what == "usage":
        _show(_usage(settings, args.days), args.json, "No usage yet.")
    elif args.what == "migrate":
        _show(_migrate(settings, up=args.action == "up"), args.json, "")
    elif args.action == "list":
        _show(_keys(settings), args.json, "No keys: only this machine is served.")
    else:
        _change_key(settings, args)
    return 0


def _show(rows: list[dict[str, Any]], as_json: bool, nothing: str) -> None:
    if as_json:
        for row in rows:
            out_json(json.dumps(row))
    elif rows:
        _table(rows)
    else:
        out(nothing)


def _with_store(settings: ServerConfig, work: Callable[[Store], Awaitable[T]], *, opened: bool = True) -> T:
    """Run `work` with the server's store, which may be in use."""
    from fulgur.server.store import base

    settings.server.store_days = 0.0  # only looking must not expire anything

    async def do() -> T:
        store = base.make(settings)
        if opened:
            await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(do())


def _is_there(settings: ServerConfig) -> bool:
    from fulgur.server.store import base

    path = None if base.is_url(settings.server.store) else base.store_path(settings)
    return base.is_url(settings.server.store) or (path is not None and path.is_file())


def _keys(settings: ServerConfig) -> list[dict[str, Any]]:
    kept = _with_store(settings, lambda store: store.keys()) if _is_there(settings) else []
    found = [(key, "store") for key in kept] + [(key, "config") for key in settings.keys]
    return [
        {"name": key.name, **{name: getattr(key, name) for name in LIMITS}, "from": source} for key, source in found
    ]


def _change_key(settings: ServerConfig, args: argparse.Namespace) -> None:
    from fulgur.server import auth

    if not args.name:
        raise UsageError(f"Which key? Run `fulgur admin keys {args.action} NAME`.")
    if args.action == "add":
        if any(key.name == args.name for key in settings.keys):
            raise UsageError(f"The config already has a key '{args.name}'.")
        key, record = auth.new_key(args.name)
        for name in LIMITS:
            setattr(record, name, getattr(args, name))
        _with_store(settings, lambda store: store.add_key(record))
        if args.json:
            out_json(json.dumps({"name": args.name, "key": key}))
        else:
            out(f"{key}\n  The key of '{args.name}'. It is shown once; servers of this store know it from now on.")
    elif not _with_store(settings, lambda store: store.revoke_key(args.name)):
        here = any(key.name == args.name for key in settings.keys)
        hint = "Take it out of the config." if here else "`fulgur admin keys` lists them."
        raise UsageError(f"The store has no key '{args.name}'.", hint=hint)
    else:
        out(f"The key '{args.name}' is revoked; servers forget it within seconds.")


def _usage(settings: ServerConfig, days: int) -> list[dict[str, Any]]:
    import msgspec

    if not _is_there(settings):
        raise FulgurError("There is no store yet.", hint="The server creates it when it first starts.")
    return [msgspec.to_builtins(used) for used in _with_store(settings, lambda store: store.usage(days))]


def _migrate(settings: ServerConfig, *, up: bool) -> list[dict[str, Any]]:
    from fulgur.server.store import base, migrate

    dialect = migrate.POSTGRESQL if base.is_url(settings.server.store) else migrate.SQLITE

    async def look(store: Store) -> tuple[list[int], list[int]]:
        done = [each.version for each in await store.migrate()] if up else []
        return await store.applied(), done

    applied, done = _with_store(settings, look, opened=False) if up or _is_there(settings) else ([], [])
    migrate.pending(dialect, applied, settings.server.store)  # raises for a newer schema
    states = dict.fromkeys(applied, "applied") | dict.fromkeys(done, "applied now")
    return [
        {"version": each.version, "name": each.name, "state": states.get(each.version, "pending")}
        for each in migrate.migrations(dialect)
    ]


def _table(rows: list[dict[str, Any]]) -> None:
    cells = [[name.replace("_", " ") for name in rows[0]]]
    cells += [["none" if name in LIMITS and not value else _cell(value) for name, value in row.items()] for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    for line in cells:
        out("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else str(value)
