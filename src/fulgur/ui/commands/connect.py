"""`fulgur connect codex`: a Codex profile and model catalog for a Fulgur server."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any

from fulgur.errors import FulgurError, UsageError
from fulgur.ui.foreign import out

PROFILE = "fulgur"
_ADD = "Add one under [models.NAME] in server.toml (docs/server.md shows how)."
_KEY = "Name the environment variable that holds it with --key-env."
_NO_LIST = "Is it a Fulgur server, and does the address end in /v1?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("client", choices=["codex"], help="the client to set up")
    parser.add_argument("--url", help="the server (default: the local one, started if none runs)")
    parser.add_argument("-m", "--model", help="the model to use (default: the first that chats)")
    parser.add_argument("--key-env", metavar="NAME", help="environment variable that holds the API key")


def run(args: argparse.Namespace) -> int:
    from fulgur.client.local import outdated
    from fulgur.workspace import folders

    listed, base_url = asyncio.run(_catalog(args.url, args.key_env))
    models = _entries(listed, "models")
    home = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
    others = [str(entry.get("id")) for entry in _entries(listed, "data")]
    model = _choose(models, others, args.model, "" if args.url else outdated(folders.home()))
    profile, catalog = write_profile(home, base_url, models, model, args.key_env)
    out(f"Wrote {profile} and {catalog}.")
    out(f"Start Codex with {model} on {base_url} (keep a server there: fulgur serve):\n  codex -p {PROFILE}")
    return 0


def write_profile(
    home: Path, base_url: str, models: list[dict[str, Any]], model: str, key_env: str | None
) -> tuple[Path, Path]:
    """Write the two files that Codex reads: its profile and its catalog. Nothing else in its home is touched."""
    home.mkdir(parents=True, exist_ok=True)
    catalog = home / f"{PROFILE}.models.json"
    catalog.write_text(json.dumps({"models": models}, indent=1) + "\n")
    lines = [
        f"model = {json.dumps(model)}",
        f'model_provider = "{PROFILE}"',
        f"model_catalog_json = {json.dumps(str(catalog))}",
        "",
        f"[model_providers.{PROFILE}]",
        'name = "Fulgur"',
        f"base_url = {json.dumps(base_url)}",
        'wire_api = "responses"',
        "supports_websockets = true",
    ]
    if key_env is not None:
        lines.append(f"env_key = {json.dumps(key_env)}")
    profile = home / f"{PROFILE}.config.toml"
    profile.write_text("\n".join(lines) + "\n")
    return profile, catalog


def _choose(models: list[dict[str, Any]], others: list[str], wanted: str | None, changed: str) -> str:
    """Choose the model for Codex. `others` are all models of the server; `changed` says that its config has changed
    since it started, or is empty."""
    names = [str(model["slug"]) for model in models]
    if wanted in names or (wanted is None and names):
        return wanted or names[0]
    there = f"Models: {', '.join(names)}." if names else _ADD
    if wanted is None:
        raise FulgurError(
            "The server has no model that chats and calls tools, which Codex needs.", hint=changed or there
        )
    if wanted in others:
        raise UsageError(f"{wanted} cannot chat and call tools, which Codex needs.", hint=changed or there)
    raise UsageError(f"The server has no model '{wanted}'.", hint=changed or there)


def _entries(listed: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = listed.get(name)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


async def _catalog(url: str | None, key_env: str | None) -> tuple[dict[str, Any], str]:
    import aiohttp

    from fulgur.client.discover import nobody_answers
    from fulgur.client.local import ensure_server

    if url is not None and not url.startswith(("http://", "https://")):
        raise UsageError(f"{url} is not the address of a server.", hint="It should look like http://127.0.0.1:8787/v1")
    base_url = (url or await ensure_server()).rstrip("/")
    headers = {}
    if key_env is not None:
        key = os.environ.get(key_env)
        if not key:
            raise UsageError(f"{key_env} is not set.", hint=f"export {key_env}=…, or name another with --key-env.")
        headers["Authorization"] = f"Bearer {key}"
    try:
        async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{base_url}/models") as answer:
            try:
                data = await answer.json(content_type=None)
            except ValueError:
                data = None
            if answer.status in (401, 403):
                raise FulgurError(f"{base_url} refused the API key ({answer.status})", hint=_KEY)
            if answer.status != 200 or not isinstance(data, dict):
                raise FulgurError(f"{base_url} has no list of models ({answer.status})", hint=_NO_LIST)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise nobody_answers(base_url, error) from None
    return data, base_url
