"""The model that answers: where it is reached, what it can do, how large its context is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fulgur.client.connection import Connection, Lane
from fulgur.client.front import ensure_front
from fulgur.client.local import ensure_server, outdated
from fulgur.client.once import LocalServer
from fulgur.config.settings import Settings
from fulgur.errors import FulgurError, UsageError
from fulgur.protocol.errors import ApiError

# Assumed of a server that lists no abilities: any hosted model today chats, calls tools and accepts these keys.
_ASSUMED = frozenset({"chat", "tools", "reasoning", "verbosity", "vision"})
_ASSUMED_CONTEXT = 128_000


@dataclass(frozen=True)
class ModelInfo:
    """One model of a server."""

    name: str
    abilities: frozenset[str]
    context: int
    price: dict[str, float]
    """Per million tokens: `input`, `cached_input`, `output`; empty when unknown."""

    def cost(self, input_tokens: int, cached_tokens: int, output_tokens: int) -> float | None:
        """Return what an answer cost; None if the price is unknown."""
        if "input" not in self.price or "output" not in self.price:
            return None
        cached = self.price.get("cached_input", self.price["input"])
        fresh = (input_tokens - cached_tokens) * self.price["input"]
        return (fresh + cached_tokens * cached + output_tokens * self.price["output"]) / 1e6


def model_info(entry: dict[str, Any], settings: Settings) -> ModelInfo:
    """Read a catalog entry; the config's context window and prices take precedence."""
    name = str(entry["id"])
    capabilities = entry.get("capabilities")
    if isinstance(capabilities, dict):
        abilities = frozenset(key for key, value in capabilities.items() if value)
    else:
        abilities = _ASSUMED if settings.provider.images is not False else _ASSUMED - {"vision"}
    said = entry.get("context_window") or entry.get("max_model_len") or entry.get("context_length")
    context = settings.integer("model_context_window") or (int(said) if said else _ASSUMED_CONTEXT)
    price = settings.prices(name) or {key: float(value) for key, value in (entry.get("price") or {}).items()}
    return ModelInfo(name, abilities, context, price)


@dataclass
class ModelLink:
    """A warm connection and the chosen model on it."""

    connection: Connection | Lane
    base_url: str
    info: ModelInfo
    settings: Settings
    """Those it was opened with: they name the provider and the model."""

    @classmethod
    async def open(cls, settings: Settings) -> ModelLink:
        """Connect to the provider (starting a local server if needed) and choose the model."""
        provider = settings.provider
        key = None if provider.wire_api == "chat" else provider.api_key()
        base_url = await _place(settings)
        ours = provider.base_url is None or provider.wire_api == "chat"
        look = (lambda: _place(settings)) if ours else None
        try:
            connection = await Connection.open(base_url, api_key=key, look=look)
        except ApiError as error:
            if error.code != "handshake_failed":
                raise
            if error.status in (401, 403):
                key = f"${provider.env_key}" if provider.env_key else f"model_providers.{provider.id}.env_key"
                raise FulgurError(f"{base_url} refused the API key ({error.status})", hint=f"Check {key}.") from None
            raise FulgurError(
                f"{base_url} does not speak the Responses API over a WebSocket ({error.status})",
                hint=f'If it speaks Chat Completions: model_providers.{provider.id}.wire_api = "chat"',
            ) from None
        try:
            entries = await _catalog(connection, settings)
            return cls(connection, base_url, _choose(entries, settings, base_url), settings)
        except BaseException:
            await connection.close()
            raise

    async def reopen(self) -> None:
        """Open a new connection after the old one was lost for good, to the same server or a new one; FulgurError if
        none answers."""
        link = await ModelLink.open(self.settings)
        await self.connection.close()
        self.connection, self.base_url, self.info = link.connection, link.base_url, link.info

    @property
    def outdated(self) -> bool:
        """Whether it leads to a local server whose config has changed since."""
        return self.settings.provider.base_url is None and bool(outdated(self.settings.home))

    async def beside(self, settings: Settings) -> ModelLink:
        """Return a link to another model on the same connection."""
        entries = await _catalog(self.connection, settings)
        return ModelLink(self.connection, self.base_url, _choose(entries, settings, self.base_url), settings)


async def _place(settings: Settings) -> str:
    """The base URL to connect to: the provider's, or a local server's, which is started if none runs."""
    provider = settings.provider
    if provider.base_url is None:
        return await ensure_server(LocalServer(settings.home))
    if provider.wire_api != "chat":
        return provider.base_url
    return await ensure_front(
        settings.home,
        provider.id,
        provider.base_url,
        key_env=provider.env_key,
        key=provider.api_key(),
        model=settings.model,
        context=settings.integer("model_context_window") or 0,
        images=bool(provider.images),
    )


async def _catalog(connection: Connection | Lane, settings: Settings) -> list[dict[str, Any]]:
    """The server's models; a server without a model list is assumed to have the configured one."""
    try:
        return await connection.models()
    except ApiError as error:
        if settings.model is None or error.status not in (404, 405, 501):
            raise
        return [{"id": settings.model}]


def _choose(entries: list[dict[str, Any]], settings: Settings, base_url: str) -> ModelInfo:
    if not entries:
        raise FulgurError(f"{base_url} offers no model", hint="`fulgur serve` says how to add one.")
    wanted = settings.model
    if wanted is None:
        return model_info(entries[0], settings)
    for entry in entries:
        if entry["id"] == wanted:
            return model_info(entry, settings)
    have = ", ".join(str(entry["id"]) for entry in entries[:12])
    changed = outdated(settings.home) if settings.provider.base_url is None else ""
    source = settings.sources.get(("model",), "-m")
    told = "" if source == "-m" else f" ({source})"  # nobody needs to hear where the name just typed comes from
    where = "the local server" if settings.provider.base_url is None else f"{settings.provider.name} ({base_url})"
    raise UsageError(
        f"{where} has no model {wanted!r}{told}",
        hint=f"It has: {have}. {changed or 'PROVIDER:NAME names one elsewhere.'}",
    )
