"""A stored response as a row of the table `responses`, the same in both databases."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from fulgur.protocol.items import Item
from fulgur.protocol.response import Response
from fulgur.server.store.base import Stored

Row = tuple[str, str, int, str | None, bytes, bytes, bytes]


def packed(owner: str, stored: Stored, events: Sequence[bytes]) -> Row:
    response = stored.response
    body, given = msgspec.json.encode(response), msgspec.json.encode(stored.input)
    return (
        response.id,
        owner,
        int(response.created_at),
        stored.parent,
        body,
        given,
        zlib.compress(b"\n".join(events), 1),
    )


def stored_of(row: Sequence[Any]) -> Stored:
    """Read the columns response, input and parent."""
    return Stored(msgspec.json.decode(row[0], type=Response), msgspec.json.decode(row[1], type=list[Item]), row[2])


def unpacked(events: bytes) -> list[bytes]:
    return zlib.decompress(events).split(b"\n")
