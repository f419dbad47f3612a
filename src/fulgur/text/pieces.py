"""What a vocabulary's pieces stand for: the exact bytes of one token.

Two kinds of vocabulary exist among code models. Byte-level ones (GPT-2 and its descendants) write every byte as one
printable character. SentencePiece ones write a space as `▁` and a byte that has no piece of its own as `<0xNN>`. A
tokenizer's decoder says which kind it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fulgur.errors import FulgurError

SPACE = "▁"
_BYTE_PIECE = re.compile(r"<0x([0-9a-fA-F]{2})>")


def _byte_characters() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes are moved above U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    moved = (byte for byte in range(256) if chr(byte) not in table)
    table.update({chr(0x100 + place): byte for place, byte in enumerate(list(moved))})
    return table


BYTE_OF_CHARACTER = _byte_characters()
CHARACTER_OF_BYTE = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}


@dataclass(frozen=True)
class PieceRules:
    """How pieces become bytes. `drop_space`: the text's first space was put there by the encoder."""

    kind: Literal["byte-level", "sentencepiece"]
    byte_fallback: bool = False
    drop_space: bool = False

    def bytes_of(self, piece: str, *, added: bool) -> bytes:
        """The bytes of one piece. Added tokens are written literally in byte-level vocabularies."""
        if self.kind == "byte-level":
            if added:
                return piece.encode()
            try:
                return bytes([BYTE_OF_CHARACTER[character] for character in piece])
            except KeyError:
                return piece.encode()
        if self.byte_fallback and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        return piece.replace(SPACE, " ").encode()


def rules_of(decoder: dict[str, Any] | None, pre_tokenizer: dict[str, Any] | None) -> PieceRules:
    """Read the rules from the `decoder` (and `pre_tokenizer`) sections of a tokenizer.json."""
    steps = list(flatten(decoder, "decoders"))
    names = {step["type"] for step in steps}
    if "ByteLevel" in names:
        return PieceRules("byte-level")
    fallback = "ByteFallback" in names
    for step in steps:
        if step["type"] == "Metaspace":
            scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
            return PieceRules("sentencepiece", fallback, scheme != "never")
        if step["type"] == "Replace" and step.get("pattern") == {"String": SPACE}:
            strips = any(other["type"] == "Strip" and other.get("start", 0) > 0 for other in steps)
            return PieceRules("sentencepiece", fallback, strips)
    if not steps and any(step["type"] == "ByteLevel" for step in flatten(pre_tokenizer, "pretokenizers")):
        return PieceRules("byte-level")
    found = ", ".join(sorted(names)) or "none"
    raise FulgurError(
        f"This tokenizer's decoder ({found}) is neither byte-level nor SentencePiece.",
        hint="Fulgur reads tokenizers of the Llama, Qwen, StarCoder, DeepSeek and Gemma kinds.",
    )


def flatten(section: dict[str, Any] | None, children: str) -> Iterator[dict[str, Any]]:
    """The steps of a tokenizer.json section, whether it is one step or a (nested) Sequence of them."""
    if section is None:
        return
    if section.get("type") == "Sequence":
        for step in section[children]:
            yield from flatten(step, children)
    else:
        yield section
