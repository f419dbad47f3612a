"""The kinds of images that an `input_image` may hold, told by a file's first bytes."""

from __future__ import annotations

HEAD = 12  # bytes that decide

_BEGINNINGS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF87a": "gif", b"GIF89a": "gif"}


def image_kind(data: bytes) -> str | None:
    """The subtype of its media type (`png`, `jpeg`, `gif`, `webp`); None for anything else."""
    if data[:4] == b"RIFF" and data[8:HEAD] == b"WEBP":
        return "webp"
    return next((kind for beginning, kind in _BEGINNINGS.items() if data.startswith(beginning)), None)
