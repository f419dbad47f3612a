"""Decodes tokens to text as they arrive."""

from __future__ import annotations

import codecs
from collections.abc import Collection

from fulgur.text.tokenizer import Tokenizer

_utf8 = codecs.getincrementaldecoder("utf-8")


class StreamDecoder:
    """Decodes one token at a time; the pieces together equal `Tokenizer.decode` of all tokens.

    A character whose bytes are spread over several tokens comes out with the last of them, never in halves.
    keep: special tokens that are shown although the others are skipped (a splitter's markers).
    continuation: the tokens continue a text, so a SentencePiece vocabulary's first space is part of them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        keep: Collection[int] = (),
        continuation: bool = False,
    ) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids - frozenset(keep) if skip_special else frozenset[int]()
        self._drop_space = tokenizer.drops_space and not continuation
        self._utf8 = _utf8("replace")

    def feed(self, token: int) -> str:
        """The text that this token completes, possibly none."""
        if token in self._skipped:
            return ""
        data = self._bytes_of(token)
        if self._drop_space and data:
            self._drop_space = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def flush(self) -> str:
        """The end of the stream: the rest of an unfinished character, as U+FFFD."""
        return self._utf8.decode(b"", final=True)
