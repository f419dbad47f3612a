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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("client", choices=["codex"], help="the client to set up")
    parser.add_argument("--url", help="the server (default: the local one, started if none runs)")
    parser.add_argument("-m", "--model", help="the model to use (default: the first that chats)")
    parser.add_argument("--key-env", metavar="NAME", help="environment variable that holds the API key")


def run(args: argparse.Namespace) -> int:
    models, base_url = asyncio.run(_catalog(args.url, args.key_env))
    home = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
    model = _choose(models, args.model)
    profile, catalog = write_profile(home, base_url, models, model, args.key_env)
    out(f"Wrote {profile} and {catalog}.")
    out(f"Start Codex with {model} on {base_url} (keep a server there: fulgur serve):\n  codex -p {PROFILE}")
    return 0


def write_profile(
    home: Path, base_url: str, models: list[dict[str, Any]], model: str, key_env: str | None
) -> tuple[Path, Path]:
    """The two files Codex reads: its profile and its catalog. Nothing else in its home is touched."""
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


def _choose(models: list[dict[str, Any]], wanted: str | None) -> str:
    names = [str(model["slug"]) for model in models]
    if wanted is not None:
        if wanted not in names:
            raise UsageError(f"There is no chat model '{wanted}' on the server.", hint=f"There are: {', '.join(names)}")
        return wanted
    if not names:
        raise FulgurError(
            "The server has no model that chats and calls tools, which Codex needs.",
            hint="Add one under [models.NAME] in server.toml (docs/server.md shows how).",
        )
    return names[0]


async def _catalog(url: str | None, key_env: str | None) -> tuple[list[dict[str, Any]], str]:
    import aiohttp

    from fulgur.client.local import ensure_server

    base_url = (url or await ensure_server()).rstrip("/")
    headers = {}
    if key_env is not None:
        key = os.environ.get(key_env)
        if not key:
            raise UsageError(f"{key_env} is not set.", hint=f"export {key_env}=…, or name another with --key-env.")
        headers["Authorization"] = f"Bearer {key}"
    try:
        async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{base_url}/models") as answer:
            data = await answer.json()
            if not isinstance(data, dict):
                raise ValueError("what it says is no list of models")
            if answer.status != 200:
                raise FulgurError(f"{base_url} answers {answer.status}: {data.get('error', {}).get('message')}")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise FulgurError(f"No Fulgur server answers at {base_url}: {error}", hint="Start one: fulgur serve") from None
    return list(data.get("models", [])), base_url
