"""`fulgur config show|check|trust|approvals|import`: what is configured, from where, and whether it is valid."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from fulgur.config import codex, keys, toml_text
from fulgur.config.records import ProjectRecords
from fulgur.config.settings import find_project, load_settings
from fulgur.errors import FulgurError
from fulgur.ui.flags import add_config_flags, folder, settings_from
from fulgur.ui.foreign import note, out, out_json
from fulgur.workspace import folders


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="show|check|trust|approvals|import")
    show = actions.add_parser("show", help="every effective key, its value and its source")
    show.add_argument("--all", action="store_true", help="also the keys that are not set, with what they do")
    show.add_argument("--json", action="store_true", help="one JSON object")
    check = actions.add_parser("check", help="read every layer and report what is wrong")
    for sub in (show, check):
        add_config_flags(sub)
    trust = actions.add_parser("trust", help="let this project's .fulgur/config.toml take effect")
    trust.add_argument("--no", action="store_true", help="stop trusting it")
    trust.add_argument("-C", "--cd", metavar="DIR", type=folder, help="the project's folder")
    approvals = actions.add_parser("approvals", help="commands that may always run in this project")
    approvals.add_argument("--forget", action="store_true", help="ask for them again")
    approvals.add_argument("-C", "--cd", metavar="DIR", type=folder, help="the project's folder")
    imports = actions.add_parser("import", help="take over another tool's config")
    imports.add_argument("tool", choices=["codex"])
    imports.add_argument("--force", action="store_true", help="replace an existing config.toml (kept as .bak)")


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand."""
    actions = {"show": _show, "check": _check, "trust": _trust, "approvals": _approvals, "import": _import}
    return actions[args.action](args)


def _show(args: argparse.Namespace) -> int:
    settings = settings_from(args)
    if args.json:
        rows = [{"key": key, "value": value, "source": source} for key, value, source in settings.effective()]
        out_json(
            json.dumps({"workspace": str(settings.workspace), "project": str(settings.project), "keys": rows}, indent=1)
        )
        return 0
    rows_text = [(key, toml_text.value_text(value), source) for key, value, source in settings.effective()]
    wide = max(len(key) for key, _, _ in rows_text)
    middle = min(40, max(len(value) for _, value, _ in rows_text))
    for key, value, source in rows_text:
        out(f"{key:<{wide}}  {value:<{middle}}  {source}")
    if args.all:
        out("\nNot set:")
        for entry in keys.KEYS:
            if entry.default is None:
                choices = f" ({', '.join(entry.choices)})" if entry.choices else ""
                out(f"  {entry.name}: {entry.help}{choices}")
    _warn(settings.warnings)
    return 0


def _check(args: argparse.Namespace) -> int:
    settings = settings_from(args)
    _ = settings.provider, settings.mcp_servers
    for name in settings.profiles:
        load_settings(settings.workspace, profile=name)
    count = sum(1 for source in settings.sources.values() if source != "default")
    out(f"the config is valid: {count} keys set, {len(settings.profiles)} profiles")
    _warn(settings.warnings)
    return 0


def _trust(args: argparse.Namespace) -> int:
    home = folders.home()
    project = find_project((args.cd or Path.cwd()).resolve(), home)
    ProjectRecords(home).set_trusted(project, not args.no)
    out(f"{project} is {'not ' if args.no else ''}trusted")
    return 0


def _approvals(args: argparse.Namespace) -> int:
    from fulgur.agent.loop.commands import remembered

    settings = load_settings(args.cd)
    for allowed in remembered(settings):
        out(allowed)
    if args.forget:
        settings.records.forget(settings.project)
        note("forgotten: they will be asked for again")
    return 0


def _import(args: argparse.Namespace) -> int:
    result = codex.read_codex(codex.codex_home())
    home = folders.home()
    target = home / "config.toml"
    if target.exists() and not args.force:
        raise FulgurError(
            f"{target} already exists", hint="--force replaces it and keeps the old one as config.toml.bak"
        )
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if target.exists():
        os.replace(target, target.with_suffix(".toml.bak"))
    target.write_text(toml_text.dump(result.table), encoding="utf-8")
    records = ProjectRecords(home)
    for project in result.trusted:
        records.set_trusted(project, True)
    out(f"wrote {target}; {len(result.trusted)} trusted projects taken over")
    for key, why in result.left_out:
        out(f"left out: {key} ({why})")
    load_settings()
    return 0


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        note(f"warning: {warning}")
