"""Puts a local server in front of an API that only speaks Chat Completions: it gains the WebSocket and steering.

The server's settings are generated from what the API offers. Its home is named after them, so that changed settings
start another server and never use the old one, which ends by itself when it is not used.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from fulgur.client.discover import listed
from fulgur.client.local import ensure_server
from fulgur.client.once import LocalServer
from fulgur.errors import FulgurError

UNKNOWN_CONTEXT = 32_768  # where neither the API nor the person says a model's context


async def ensure_front(
    home: Path,
    name: str,
    base_url: str,
    *,
    key_env: str | None,
    key: str | None,
    model: str | None,
    context: int,
    images: bool,
) -> str:
    """The base URL of a server in front of `base_url`. `model`, `context` (0: unknown) and whether its models take
    `images` are what the person says."""
    offered = await listed(base_url, key)
    if model is not None and model not in offered:
        offered[model] = 0  # some APIs list no models, or not all: the API itself will say
    if not offered:
        raise FulgurError(f"{base_url} does not list its models", hint="Name a model with `-m MODEL` or in the config.")
    text = _settings(name, base_url, key_env, {known: context or size for known, size in offered.items()}, images)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    folder = home / "fronts" / f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)}-{digest}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "server.toml").write_text(text, encoding="utf-8")
    return await ensure_server(LocalServer(folder, config=folder / "server.toml", port=0))


def _settings(name: str, base_url: str, key_env: str | None, models: dict[str, int], images: bool) -> str:
    """The server.toml of the front. JSON strings are TOML strings."""
    lines = ["[server]", "port = 0", "", f"[backends.{json.dumps(name)}]", f"url = {json.dumps(base_url)}"]
    lines += ['api = "chat"', *([f"key_env = {json.dumps(key_env)}"] if key_env else [])]
    for model, context in models.items():
        lines += ["", f"[models.{json.dumps(model)}]", f"backend = {json.dumps(name)}"]
        lines += [f"context = {context or UNKNOWN_CONTEXT}", *(["vision = true"] if images else [])]
    return "\n".join(lines) + "\n"
