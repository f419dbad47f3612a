"""Guess that the last few tokens are followed by what followed them earlier."""

from __future__ import annotations

from fulgur.engine.speculate.acceptance import Acceptance

MATCH = 3  # this many matching tokens make a good guess; without them a single one makes a poor one
_FEW = 16  # tokens up to which a loop is quicker than bulk operations
_FAR = 16  # tokens compared backwards from a place that was found
PRIOR = (0.2, 0.4, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95)


class NgramDrafter:
    """Looks up the end of the sequence in the sequence itself. Each new token costs one entry per match length.

    Once an earlier place is found, it is followed as long as it agrees, so that long copies stay on one track.
    """

    def __init__(self, tokens: list[int], acceptance: Acceptance | None = None) -> None:
        self.run = -1  # matching tokens minus one
        self.acceptance = acceptance or Acceptance(PRIOR)
        self._tokens = tokens
        # Three tokens, and one -> the place after their last occurrence.
        self._after_three: dict[tuple[int, ...], int] = {}
        self._after_one: dict[int, int] = {}
        self._seen = 0
        self._indexed = 0
        self._cursor = 0

    def follow(self) -> None:
        """Take in the tokens that came since the last call."""
        tokens, seen, count = self._tokens, self._seen, len(self._tokens)
        if count == seen:
            return
        if self.run >= 0:
            at, cursor = seen, self._cursor
            while at < count and tokens[cursor] == tokens[at]:
                at += 1
                cursor += 1
            self._cursor = cursor
            self.acceptance.note_hits(self.run, at - seen)
            self.run += at - seen
            if at < count:
                self.acceptance.note(self.run, False)
                self.run = -1
        if self.run < MATCH - 1:
            self._index(count - 1)  # not the end itself: it would be found
            self._look_up(count)
        self._seen = count

    def draft(self, limit: int) -> list[int]:
        """The tokens after the earlier place; where they reach the end of the sequence, they repeat."""
        if self.run < 0:
            return []
        tokens, cursor = self._tokens, self._cursor
        draft = tokens[cursor : cursor + limit]
        while len(draft) < limit:
            draft.append(draft[cursor + len(draft) - len(tokens)])
        return draft

    def _look_up(self, count: int) -> None:
        tokens = self._tokens
        place = self._after_three.get(tuple(tokens[-MATCH:]))
        if place is not None:
            agree = MATCH
            while agree < min(_FAR, place) and tokens[place - agree - 1] == tokens[count - agree - 1]:
                agree += 1
            self._cursor, self.run = place, agree - 1
        elif self.run < 0:
            place = self._after_one.get(tokens[-1])
            if place is not None:
                self._cursor, self.run = place, 0

    def _index(self, end: int) -> None:
        """Index the places after the tokens up to `end`, as far as that is not done yet."""
        tokens, first, self._indexed = self._tokens, self._indexed, end
        start = max(first, MATCH - 1)
        if end - first > _FEW:
            places = range(start + 1, end + 1)
            triples = zip(tokens[start - 2 :], tokens[start - 1 :], tokens[start:], strict=False)
            self._after_three.update(zip(triples, places, strict=False))
            self._after_one.update(zip(tokens[first:end], range(first + 1, end + 1), strict=True))
            return
        for at in range(first, end):
            self._after_one[tokens[at]] = at + 1
        for at in range(start, end):
            self._after_three[tokens[at - 2], tokens[at - 1], tokens[at]] = at + 1
