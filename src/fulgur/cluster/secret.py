"""Authentication between fronts and replicas: each side proves that it knows the cluster's secret, without sending it.

Each side sends random bytes and answers the other's with an HMAC of both. The words "front" and "replica" prevent a
proof from being replayed to the side that made it. Frames after the proof are neither encrypted nor signed: the network
between fronts and replicas is a private one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from fulgur.errors import FulgurError, UsageError
from fulgur.workspace import folders

VARIABLE = "FULGUR_CLUSTER_SECRET"
_SHORTEST = 16  # bytes


def load(name: str = "") -> bytes:
    """The secret: from the environment, else from the file that the config names."""
    given = os.environ.get(VARIABLE, "").encode()
    source = f"${VARIABLE}"
    if not given and name:
        file = folders.expanded(name)
        source = str(file)
        try:
            if file.stat().st_mode & 0o077:
                raise UsageError(f"{file} can be read by other users", hint=f"Run: chmod 600 {file}")
            given = file.read_bytes().strip()
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}", hint=_HINT) from None
    if not given:
        raise UsageError("The cluster has no secret.", hint=_HINT)
    if len(given) < _SHORTEST:
        raise UsageError(f"{source}: the secret has {len(given)} bytes; at least {_SHORTEST} are needed", hint=_HINT)
    return given


def make(file: Path) -> None:
    """A new secret in a file that only its owner reads."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise FulgurError(
            f"{file} already exists", hint="Fronts and replicas share one secret: copy the file to their machines."
        ) from None
    with os.fdopen(descriptor, "w") as opened:
        opened.write(secrets.token_hex(32) + "\n")


def nonce() -> bytes:
    return secrets.token_bytes(32)


def proof(secret: bytes, side: str, challenge: bytes, other: bytes) -> bytes:
    return hmac.digest(secret, b"fulgur cluster 1 " + side.encode() + challenge + other, hashlib.sha256)


def holds(given: bytes, expected: bytes) -> bool:
    return hmac.compare_digest(given, expected)


_HINT = f"Set ${VARIABLE}, or name a file in cluster.secret_file; `fulgur cluster secret FILE` makes one."
