"""Opaque content (`encrypted_content`): what the client carries for us and gives back unchanged.

It is packed, not secret: the client wrote or saw every word of it.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Any

import msgspec

from fulgur.protocol.errors import invalid

_LIMIT = 8 << 20  # unpacked bytes: a small blob must not become a large one


def seal(content: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(zlib.compress(msgspec.json.encode(content), 6)).decode()


def unseal(blob: str, param: str = "input") -> dict[str, Any]:
    """The content of a blob this server (or one like it) made; a 400 for anything else."""
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.urlsafe_b64decode(blob.encode()), _LIMIT)
        if unpacker.unconsumed_tail:
            raise invalid("The encrypted_content is too large.", param)
        content: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        return content
    except (binascii.Error, zlib.error, msgspec.MsgspecError, ValueError):
        raise invalid("The encrypted_content was not made by this server.", param) from None
