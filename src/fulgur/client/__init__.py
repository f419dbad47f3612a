"""The client: typed events over one warm socket. The agent, the apps and the tests use this and nothing else.

`once` is for a single answer, and imports nothing slow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fulgur.client.connection import Connection
    from fulgur.client.stream import ResponseStream

__all__ = ["Connection", "ResponseStream"]
_MODULES = {"Connection": "connection", "ResponseStream": "stream"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
