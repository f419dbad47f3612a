"""Identifiers: a prefix that says what the thing is, and 32 hex digits."""

from __future__ import annotations

import hashlib
import secrets

RESPONSE = "resp"
MESSAGE = "msg"
FUNCTION_CALL = "fc"
CUSTOM_CALL = "ctc"
CALL = "call"
REASONING = "rs"
COMPACTION = "cmp"
STEER = "steer"


def new_id(prefix: str) -> str:
    """A fresh identifier, e.g. `resp_3f…`."""
    return f"{prefix}_{secrets.token_hex(16)}"


def derived_id(prefix: str, of: str, number: int) -> str:
    """The identifier of part `number` of `of`: making the same part again gives the same identifier."""
    return f"{prefix}_{hashlib.blake2b(f'{prefix} {number} {of}'.encode(), digest_size=16).hexdigest()}"
