"""Guess that what followed the last few tokens before follows them again."""

from __future__ import annotations

from fulgur.engine.speculate.adapt import Acceptance

MATCH = 3  # tokens that must agree before a guess is made


class NgramDrafter:
    """Looks the end of the sequence up in the sequence itself. Each new token costs one dictionary entry.

    Once an earlier place is found it is followed as long as it agrees, so that long copies stay on one track.
    """

    def __init__(self, tokens: list[int]) -> None:
        self.run = -1
        self.acceptance = Acceptance()
        self._tokens = tokens
        self._after: dict[tuple[int, ...], int] = {}  # the last MATCH tokens -> the place after their last occurrence
        self._seen = 0
        self._cursor = 0

    def follow(self) -> None:
        """Take in the tokens that came since the last call."""
        if self._seen == 0:
            self._index_all()
        tokens, after = self._tokens, self._after
        for at in range(self._seen, len(tokens)):
            token = tokens[at]
            if self.run >= 0:
                hit = tokens[self._cursor] == token
                self.acceptance.note(self.run, hit)
                if hit:
                    self._cursor += 1
                    self.run += 1
                else:
                    self.run = -1
            key = tuple(tokens[at + 1 - MATCH : at + 1]) if at + 1 >= MATCH else ()
            if key:
                if self.run < 0:
                    place = after.get(key)
                    if place is not None:
                        self._cursor, self.run = place, 0
                after[key] = at + 1
        self._seen = len(tokens)

    def draft(self, limit: int) -> list[int]:
        """What stood after the earlier place; a loop that reaches the present goes round again."""
        if self.run < 0:
            return []
        tokens, cursor = self._tokens, self._cursor
        draft = tokens[cursor : cursor + limit]
        while len(draft) < limit:
            draft.append(draft[cursor + len(draft) - len(tokens)])
        return draft

    def _index_all(self) -> None:
        """All but the last token at once: a long prompt is indexed in bulk."""
        tokens, count = self._tokens, len(self._tokens) - 1
        if count >= MATCH:
            keys = zip(*(tokens[i : count + 1 - MATCH + i] for i in range(MATCH)), strict=True)
            self._after = dict(zip(keys, range(MATCH, count + 1), strict=True))
        self._seen = max(count, 0)
