"""Finds the servers on this machine, the models they list, and the context of each.

Only loopback addresses are asked; a server elsewhere is asked when a person has chosen it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from fulgur.config.known import ON_THIS_MACHINE
from fulgur.errors import FulgurError

Models = dict[str, int]
"""Names and contexts in tokens; 0 where the server does not say."""

_MOST_MODELS = 200
_SIZES = ("context_window", "max_model_len", "loaded_context_length", "context_length", "max_context_length")


async def discover(places: Mapping[str, str], seconds: float = 1.0) -> dict[str, Models]:
    """The servers among `places` (name: base URL) that answer, with their models. Others are left out silently."""

    async def one(base_url: str) -> Models:
        with contextlib.suppress(FulgurError):
            return await listed(base_url, None, seconds)
        return {}

    asked = {name: base_url for name, base_url in places.items() if is_loopback(base_url)}
    found = await asyncio.gather(*(one(base_url) for base_url in asked.values()))
    return {name: models for name, models in zip(asked, found, strict=True) if models}


def is_loopback(base_url: str) -> bool:
    """Whether an address is certainly this machine: a name might lead anywhere."""
    host = urlsplit(base_url).hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


async def listed(base_url: str, key: str | None, seconds: float = 10.0) -> Models:
    """The models an API lists at `base_url`, with their context where it says so; FulgurError when it is
    unreachable."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    base = base_url.rstrip("/")
    try:
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            async with session.get(f"{base}/models") as answer:
                if answer.status in (401, 403):
                    raise FulgurError(f"{base_url} refused the API key ({answer.status})")
                said: Any = await answer.json(content_type=None) if answer.status == 200 else {}
            found = _models(said, "data", "id")
            if is_loopback(base_url) and found and not all(found.values()):
                # LM Studio and Ollama say in their own lists what a loaded model holds.
                for path, field, name in (("/api/v0/models", "data", "id"), ("/api/ps", "models", "model")):
                    more = await _other_list(session, base.removesuffix("/v1") + path, field, name)
                    found = {model: size or more.get(model, 0) for model, size in found.items()}
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise nobody_answers(base_url, error) from None
    return found


def nobody_answers(base_url: str, error: Exception) -> FulgurError:
    """The error for a server that cannot be reached: why, in the system's words, and what to check."""
    other = next((known.name for known in ON_THIS_MACHINE.values() if known.base_url == base_url.rstrip("/")), None)
    here = f"Is {other} running?" if other else "Is it running? `fulgur serve` starts a Fulgur server."
    hint = here if is_loopback(base_url) else "Check the address and the network."
    return FulgurError(f"No server answers at {base_url}: {in_words(error)}", hint=hint)


def in_words(error: Exception) -> str:
    """Why a server could not be reached, or was lost, without the HTTP library's own names for it."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError):
        return "the connection was closed"
    if isinstance(cause, OSError) and cause.errno is not None:
        return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
    return str(error) or type(error).__name__


async def _other_list(session: aiohttp.ClientSession, url: str, field: str, name: str) -> Models:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
        async with session.get(url) as answer:
            if answer.status == 200:
                return _models(await answer.json(content_type=None), field, name)
    return {}


def _models(said: Any, field: str, name: str) -> Models:
    entries = said.get(field) if isinstance(said, dict) else None
    found: Models = {}
    for entry in entries if isinstance(entries, list) else []:
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            found[str(entry[name])] = _context(entry)
    return dict(list(found.items())[:_MOST_MODELS])


def _context(entry: dict[str, Any]) -> int:
    """The context size, which every server names differently; llama.cpp puts it one level down."""
    meta = entry.get("meta") or {}
    sizes = [*(entry.get(key) for key in _SIZES), meta.get("n_ctx"), meta.get("n_ctx_train")]
    return next((int(size) for size in sizes if size), 0)
