"""An answer that must begin with a given text: token healing.

A cursor is seldom at the end of a token. The prompt is cut at the last boundary before it, and the answer must begin
with the text that was cut off: in that text's own tokens, until a token is chosen that goes beyond it. Other spellings
are not allowed. For `retu` a model likes `r`, which begins a raw string, nearly as much as `return`; only after `r`
would it find that nothing likely follows. The given text is not reported again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fulgur.text.tokenizer import Tokenizer


class Spellings:
    """The tokens of a vocabulary, without the special ones, sorted by their bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        plain = (token for token in range(tokenizer.vocab_size) if token not in tokenizer.special_ids)
        spelled = sorted((data, token) for token in plain if (data := tokenizer.token_bytes(token)))
        self._bytes = [data for data, _ in spelled]
        self._tokens = np.array([token for _, token in spelled], np.int64)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Spellings:
        if tokenizer not in _known:
            _known[tokenizer] = cls(tokenizer)
        return _known[tokenizer]

    def starting_with(self, data: bytes) -> npt.NDArray[np.int64]:
        first = bisect_left(self._bytes, data)
        last = bisect_left(self._bytes, data + b"\xff" * 64, first)  # UTF-8 has no such byte
        return self._tokens[first:last]


_known: WeakKeyDictionary[Tokenizer, Spellings] = WeakKeyDictionary()  # sorting a vocabulary takes a moment


class Beginning:
    """How far one answer has spelled the text that it must begin with; the engine uses it like a grammar's matcher."""

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        self._own = tokenizer.encode(text, special=False, continuation=True)  # tokens still to come
        self._hidden = len(text)  # characters that are not reported
        self.repeated = -1  # the last token, if it spelled given text and nothing else
        self._spellings = Spellings.of(tokenizer)
        self._bytes = tokenizer.token_bytes

    @property
    def given(self) -> bool:
        """Whether the next token still spells given text; its probability is then taken among the tokens that do."""
        return bool(self._own)

    def cut(self, text: str) -> str:
        """The part of the answer's next text that is new."""
        new = text[self._hidden :]
        self._hidden -= len(text) - len(new)
        return new

    def mask(self, out: npt.NDArray[Any]) -> None:
        if not self._own:
            out[:] = 1
            return
        out[:] = 0
        out[self._own[0]] = 1
        out[self._spellings.starting_with(self._rest(self._own))] = 1

    def accept(self, token: int) -> bool:
        rest = self._after(self._own, token)
        if rest is None:
            return False
        self.repeated = token if token in self._own[:1] else -1
        self._own = rest
        return True

    def validate(self, tokens: Sequence[int]) -> int:
        own: list[int] | None = self._own
        for count, token in enumerate(tokens):
            own = self._after(own or [], token)
            if own is None:
                return count
        return len(tokens)

    def _rest(self, own: list[int]) -> bytes:
        return b"".join(map(self._bytes, own))

    def _after(self, own: list[int], token: int) -> list[int] | None:
        """The given tokens that remain after this token; None if it does not fit."""
        if own and token == own[0]:
            return own[1:]
        return [] if self._bytes(token).startswith(self._rest(own)) else None

    def rollback(self, count: int) -> None:
        """Take back tokens beyond the given text. Nothing to do: they changed no state."""

    def is_done(self) -> bool:
        return False

    def forced_tokens(self) -> list[int]:
        return []
