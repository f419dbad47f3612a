"""Images attached to a prompt: saved as files that the prompt then names, as a person in a terminal would."""

from __future__ import annotations

import base64
import binascii
import hashlib
import tempfile
from pathlib import Path
from typing import Any

from fulgur.protocol import rpc

_ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
_MOST = 10 << 20


class Images:
    """The files last as long as the editor's connection; once its turn has begun, a session holds the images itself."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def named(self, block: dict[str, Any]) -> str:
        """Save an `image` block and return how the prompt names it. The turn decides whether the model takes images."""
        ending = _ENDINGS.get(str(block.get("mimeType")))
        if ending is None:
            raise rpc.RpcError(rpc.INVALID_PARAMS, f"an image must be one of {', '.join(_ENDINGS)}")
        try:
            data = base64.b64decode(str(block.get("data", "")), validate=True)
        except binascii.Error:
            raise rpc.RpcError(rpc.INVALID_PARAMS, "the image is not valid base64") from None
        if not 0 < len(data) <= _MOST:
            raise rpc.RpcError(rpc.INVALID_PARAMS, f"an image must have between 1 byte and {_MOST >> 20} MiB")
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="fulgur-images-")
        path = Path(self._folder.name) / f"{hashlib.sha256(data).hexdigest()[:16]}.{ending}"
        path.write_bytes(data)
        return f' "{path}" ' if any(char.isspace() for char in str(path)) else f" @{path} "

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
