"""Images that a prompt names: `@shot.png`, or a full path, which terminals paste when a file is dropped on them."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from fulgur.agent.session.history import Item
from fulgur.errors import FulgurError
from fulgur.protocol.images import image_kind
from fulgur.workspace.files import Files

_ENDING = r"\.(?:png|jpe?g|gif|webp)"
_MENTION = re.compile(rf"(?<!\S)@(\S+?{_ENDING})(?=[\s,;:.!?)]|$)", re.IGNORECASE)
_QUOTED = re.compile(rf"""(["'])((?:file://)?[/~][^"'\n]*?{_ENDING})\1""", re.IGNORECASE)
_BARE = re.compile(rf"(?<![\w\"'@:/])((?:file://)?~?/(?:\\.|[^\s\"'\\])*?{_ENDING})(?=[\s,;:.!?)]|$)", re.IGNORECASE)
_MOST_IMAGES, _MOST_BYTES = 8, 10 << 20


@dataclass(frozen=True)
class Image:
    """One image, under the name it was given."""

    name: str
    kind: str
    data: bytes

    def part(self) -> dict[str, str]:
        """Encode it as a content part of a message."""
        encoded = base64.b64encode(self.data).decode()
        return {"type": "input_image", "detail": "auto", "image_url": f"data:image/{self.kind};base64,{encoded}"}


@dataclass(frozen=True)
class Named:
    """The image names in a prompt. Those `asked` for with `@` must be sent; those `pasted` may just be paths."""

    asked: tuple[str, ...] = ()
    pasted: tuple[str, ...] = ()


def images_named(text: str) -> Named:
    """Find the names in a prompt that look like image files."""
    pasted = [match[2] for match in _QUOTED.finditer(text)]
    pasted += [re.sub(r"\\(.)", r"\1", match[1]) for match in _BARE.finditer(_QUOTED.sub(" ", text))]
    paths = [unquote(path.removeprefix("file://")) if path.startswith("file://") else path for path in pasted]
    return Named(tuple(dict.fromkeys(_MENTION.findall(text))), tuple(dict.fromkeys(paths)))


def read_images(named: Named, files: Files) -> list[Image]:
    """Read the images; a pasted path that does not exist stays plain text. FulgurError for one that cannot be sent."""
    found = [_read(name, files) for name in named.asked]
    for path in named.pasted:
        if files.locate(path).is_file():
            found.append(_read(path, files))
    if len(found) > _MOST_IMAGES:
        raise FulgurError(f"{len(found)} images in one prompt", hint=f"At most {_MOST_IMAGES} can be sent at once.")
    return found


def message_of(images: Sequence[Image]) -> Item:
    """Build the message that carries them, each after its name."""
    content: list[dict[str, str]] = []
    for image in images:
        content += [{"type": "input_text", "text": f"[image: {image.name}]"}, image.part()]
    return {"type": "message", "role": "user", "content": content}


def without_images(item: Item) -> Item:
    """Strip images from an item for a model without vision; the names stay."""
    content = item.get("content")
    if not isinstance(content, list) or not any(part.get("type") == "input_image" for part in content):
        return item
    return {**item, "content": [part for part in content if part.get("type") != "input_image"]}


def _read(name: str, files: Files) -> Image:
    data = files.read(files.locate(name), _MOST_BYTES + 1)  # a sparse file may claim to be of any size
    kind = image_kind(data)
    if kind is None:
        raise FulgurError(f"{name} is not a PNG, JPEG, GIF or WebP image, whatever its name says")
    if len(data) > _MOST_BYTES:
        raise FulgurError(f"{name} is too large", hint=f"An image may be at most {_MOST_BYTES >> 20} MiB.")
    return Image(name, kind, data)
