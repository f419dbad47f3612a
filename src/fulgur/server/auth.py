"""Who may call: API keys (only their hashes are kept), browser origins, and the rule for binds beyond loopback."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections.abc import Iterable
from urllib.parse import urlsplit

from fulgur.errors import UsageError
from fulgur.protocol.errors import ApiError
from fulgur.server.config import Key, ServerConfig

ANONYMOUS = "anonymous"


def new_key(name: str) -> tuple[str, Key]:
    """A fresh key to hand out, and the record to keep."""
    key = f"fg-{secrets.token_urlsafe(32)}"
    return key, Key(name, digest(key))


def digest(key: str) -> str:
    """Keys are long and random, so one round of SHA-256 is enough at rest."""
    return hashlib.sha256(key.encode()).hexdigest()


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(config: ServerConfig, *, keyed: bool) -> None:
    """Beyond loopback the server does not start without a key."""
    if not keyed and not is_loopback(config.server.host):
        raise UsageError(
            f"Listening on {config.server.host} without an API key would serve anyone who can reach this machine.",
            hint="Make a key with `fulgur admin keys add NAME`, or listen on 127.0.0.1.",
        )


class Auth:
    """Checks requests at the door (for a WebSocket: at the handshake)."""

    def __init__(self, config: ServerConfig) -> None:
        self._names: dict[str, str] = {}  # by the key's hash
        self.use(config.keys)
        self._origins = {origin.rstrip("/") for origin in config.server.origins}

    def use(self, keys: Iterable[Key]) -> None:
        """Replace the known keys."""
        self._names = {key.sha256.lower(): key.name for key in keys}

    @property
    def keyed(self) -> bool:
        return bool(self._names)

    def owner(self, authorization: str | None) -> str:
        """The name of the key, whose responses the caller may see. Raises 401."""
        if not self._names:
            return ANONYMOUS
        scheme, _, key = (authorization or "").partition(" ")
        # Look the key up by its hash, so that timing reveals nothing about it.
        found = self._names.get(digest(key.strip())) if scheme.lower() == "bearer" else None
        if found is None:
            raise ApiError(
                401,
                "invalid_api_key",
                "The API key is missing or wrong. Send it as 'Authorization: Bearer KEY'.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return found

    def allows(self, origin: str) -> bool:
        """Whether the config names this origin; CORS headers then let its pages read the answers."""
        return origin in self._origins

    def check_origin(self, origin: str | None, host: str | None) -> None:
        """Refuse pages of other sites, which could otherwise use this server through a user's browser."""
        if origin is None or self.allows(origin):
            return
        parts = urlsplit(origin)
        if parts.netloc and parts.netloc == host and is_loopback(parts.hostname or ""):
            return
        raise ApiError(
            403, "origin_not_allowed", f"The origin {origin} is not allowed; name it in server.origins to allow it."
        )
