"""Identifiers: a prefix that says what the thing is, and 32 hex digits."""

from __future__ import annotations

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
