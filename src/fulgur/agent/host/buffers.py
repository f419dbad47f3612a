"""Files as an editor has them open: reads include unsaved text, and writes go through the editor so that it shows them.

Only plain text takes this way: carriage returns, a byte order mark or another encoding would not survive the round
trip.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TypeVar

from fulgur.client.rpc import ConnectionLost, Peer
from fulgur.protocol.rpc import RpcError

T = TypeVar("T")
_SECONDS = 10.0
_LARGEST = 1 << 20


class EditorBuffers:
    """One editor's buffers, queried from the threads that read and write files."""

    def __init__(self, peer: Peer, session: str, *, reads: bool, writes: bool) -> None:
        self._peer = peer
        self._session = session
        self._reads, self._writes = reads, writes
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def read(self, path: Path, on_disk: bytes) -> bytes | None:
        """The text that the editor shows; None if it is not asked or does not answer."""
        if not self._reads or not _plain(on_disk):
            return None
        text = self._ask("buffer.read", {"session": self._session, "path": str(path)}, str | None, None)
        return text.encode() if text is not None else None

    def write(self, path: Path, content: bytes) -> bool:
        """Whether the editor took the new text; the caller then looks at what is on disk."""
        if not self._writes or not _plain(content):
            return False
        params = {"session": self._session, "path": str(path), "text": content.decode()}
        return self._ask("buffer.write", params, bool, False)

    def _ask(self, method: str, params: dict[str, str], kind: object, otherwise: T) -> T:
        if self._peer.closed or threading.get_ident() == self._thread:
            return otherwise  # the event loop cannot wait for itself
        future = asyncio.run_coroutine_threadsafe(self._peer.request(method, params, kind), self._loop)  # type: ignore[arg-type, var-annotated]
        try:
            return future.result(_SECONDS)  # type: ignore[no-any-return]
        except (ConnectionLost, RpcError, TimeoutError):
            future.cancel()
            return otherwise


def _plain(content: bytes) -> bool:
    if len(content) > _LARGEST or b"\r" in content or b"\0" in content or content.startswith(b"\xef\xbb\xbf"):
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
