"""Guess that what followed the last few tokens before follows them again."""

from __future__ import annotations

from fulgur.engine.speculate.acceptance import Acceptance

MATCH = (3, 1)  # tokens that must agree for a guess, the best first
_FAR = 16  # tokens compared backwards from a place that was found
PRIOR = (0.2, 0.4, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95)


class NgramDrafter:
    """Looks the end of the sequence up in the sequence itself. Each new token costs one entry a length.

    Once an earlier place is found it is followed as long as it agrees, so that long copies stay on one track.
    """

    def __init__(self, tokens: list[int], acceptance: Acceptance | None = None) -> None:
        self.run = -1  # tokens that agree, less one
        self.acceptance = acceptance or Acceptance(PRIOR)
        self._tokens = tokens
        # The last few tokens -> the place after their last occurrence, for each number of them.
        self._after: list[dict[tuple[int, ...], int]] = [{} for _ in MATCH]
        self._seen = 0
        self._cursor = 0

    def follow(self) -> None:
        """Take in the tokens that came since the last call."""
        tokens, seen, count = self._tokens, self._seen, len(self._tokens)
        if count == seen:
            return
        if self.run >= 0:
            cursor = self._cursor
            for at in range(seen, count):
                hit = tokens[cursor] == tokens[at]
                self.acceptance.note(self.run, hit)
                if not hit:
                    self.run = -1
                    break
                cursor += 1
                self.run += 1
            self._cursor = cursor
        self._index(seen, count - 1)
        if self.run < MATCH[0] - 1:
            self._look_up(count)
        self._index(count - 1, count)
        self._seen = count

    def draft(self, limit: int) -> list[int]:
        """What stood after the earlier place; a loop that reaches the present goes round again."""
        if self.run < 0:
            return []
        tokens, cursor = self._tokens, self._cursor
        draft = tokens[cursor : cursor + limit]
        while len(draft) < limit:
            draft.append(draft[cursor + len(draft) - len(tokens)])
        return draft

    def _look_up(self, count: int) -> None:
        tokens = self._tokens
        for length, after in zip(MATCH, self._after, strict=True):
            if length <= self.run + 1:
                return
            place = after.get(tuple(tokens[count - length : count]))
            if place is not None:
                agree = length
                if length == MATCH[0]:
                    while agree < min(_FAR, place) and tokens[place - agree - 1] == tokens[count - agree - 1]:
                        agree += 1
                self._cursor, self.run = place, agree - 1
                return

    def _index(self, first: int, end: int) -> None:
        """The places after the tokens from `first` up to `end`, in bulk."""
        tokens = self._tokens
        for length, after in zip(MATCH, self._after, strict=True):
            start = max(first, length - 1)
            if end - start == 1:
                after[tuple(tokens[end - length : end])] = end
            elif end > start:
                keys = zip(*(tokens[start + 1 - length + i : end + 1 - length + i] for i in range(length)), strict=True)
                after.update(zip(keys, range(start + 1, end + 1), strict=True))
