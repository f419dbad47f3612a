"""Guess that an edited text continues like the original.

The drafter moves a cursor along the source region. Where the output parts from the source, it looks for the place where
they meet again. It searches for the last tokens of the output: first forward from where they parted (an insertion or a
change, then a deletion) and, if the output stays away, anywhere in the source. What lies between parting and meeting is
a substitution. A short one is remembered and proposed again wherever its old side comes up: the model writes out a
rename once, and it is drafted from then on.
"""

from __future__ import annotations

from dataclasses import dataclass

from fulgur.engine.speculate.acceptance import Acceptance

_WINDOW = 64  # source tokens after the parting that are searched first
_BACK = 8  # tokens compared backwards from a meeting place
_SURE = 3  # matching tokens that confirm a meeting
_WIDE = 4  # tokens that must agree for a meeting anywhere in the source
_BLIND = 2  # tokens after a parting for which a one-to-one substitution is guessed
_LONGEST = 12  # tokens of a substitution that is remembered
_CONFIDENT = 8  # right guesses that a beginning counts as: most edits begin like the original
PRIOR = (0.3, 0.5, 0.7, 0.85, 0.92, 0.95, 0.965, 0.975)


@dataclass(slots=True)
class Rename:
    """A substitution seen before; it is proposed while it was right more often than wrong."""

    old: tuple[int, ...]
    new: tuple[int, ...]
    score: int = 1


class SourceDrafter:
    """Follows `tokens` from its present end on, against `source`."""

    def __init__(self, source: list[int], tokens: list[int], acceptance: Acceptance | None = None) -> None:
        self.run = _CONFIDENT
        self.acceptance = acceptance or Acceptance(PRIOR)
        self._source = source
        self._tokens = tokens
        self._seen = len(tokens)
        self._cursor = 0
        self._rename: Rename | None = None  # the one being written at the cursor,
        self._written = 0  # and how much of it
        self._parted: tuple[int, int] | None = None  # places in the source and in the tokens
        self._met: tuple[int, int] | None = None  # where they meet again, by the current guess
        self._renames: dict[int, list[Rename]] = {}
        self._places: dict[tuple[int, ...], list[int]] | None = None

    def restart(self) -> None:
        """Follow the source from its beginning."""
        self._seen = len(self._tokens)
        self._arrive(0)
        self._parted, self._met, self.run = None, None, _CONFIDENT

    def follow(self) -> None:
        """Take in the tokens that came since the last call."""
        at, count = self._seen, len(self._tokens)
        while at < count:
            at = self._copied(at, count)
            if at < count:
                self._take(at)
                at += 1
        self._seen = count

    def _copied(self, at: int, count: int) -> int:
        """The usual case in bulk: take tokens from `at` on that equal the source, as long as no rename may begin.
        Returns where they end."""
        if self.run < 0 or self._rename is not None:
            return at
        if self._parted is not None:  # no further than where the meeting is confirmed
            count = min(count, at + _SURE - self.run)
        source, tokens, renames = self._source, self._tokens, self._renames
        start = cursor = self._cursor
        last = len(source) - 1
        while at < count and cursor < last and source[cursor] == tokens[at] and source[cursor + 1] not in renames:
            at += 1
            cursor += 1
        if cursor > start:
            self._cursor = cursor
            self.acceptance.note_hits(self.run, cursor - start)
            self.run += cursor - start
            if self._parted is not None and self.run >= _SURE:
                self._settle()
        return at

    def draft(self, limit: int) -> list[int]:
        """The source from the cursor on, with the known renames applied."""
        if self.run < 0:
            return []
        source, at = self._source, self._cursor
        draft: list[int] = []
        if self._rename is not None:
            draft += self._rename.new[self._written :]
            at += len(self._rename.old)
        if not self._renames:
            return source[at : at + limit]
        while len(draft) < limit and at < len(source):
            rename = self._rename_at(at)
            if rename is None:
                draft.append(source[at])
                at += 1
            else:
                draft += rename.new
                at += len(rename.old)
        return draft[:limit]

    def _take(self, at: int) -> None:
        token = self._tokens[at]
        expected = self._expected()
        if expected is not None:
            self.acceptance.note(self.run, expected == token)
        if expected == token:
            self._advance()
            return
        rename = self._rename
        if rename is not None:
            rename.score -= 1
            self._rename = None
            if self._written == 0 and self._source[self._cursor] == token:  # this time the old name stays
                self._advance()
                return
        if self._parted is None:
            self._parted = (self._cursor, at - self._written)
        self._written = 0
        self._meet(at)

    def _expected(self) -> int | None:
        if self.run < 0:
            return None
        if self._rename is not None:
            return self._rename.new[self._written]
        return self._source[self._cursor] if self._cursor < len(self._source) else None

    def _advance(self) -> None:
        """Go past a token that was the expected one."""
        self.run += 1
        if self._rename is not None:
            self._written += 1
            if self._written == len(self._rename.new):
                self._rename.score = min(self._rename.score + 1, 4)
                self._arrive(self._cursor + len(self._rename.old))
        else:
            self._arrive(self._cursor + 1)
        if self._parted is not None and self.run >= _SURE:
            self._settle()

    def _arrive(self, cursor: int) -> None:
        self._cursor = cursor
        self._written = 0
        self._rename = self._rename_at(cursor) if self._renames and cursor < len(self._source) else None

    def _rename_at(self, at: int) -> Rename | None:
        for rename in self._renames.get(self._source[at], ()):
            if rename.score > 0 and tuple(self._source[at : at + len(rename.old)]) == rename.old:
                return rename
        return None

    def _meet(self, at: int) -> None:
        """Guess where in the source the token at `at` is; `run` becomes -1 when there is no guess."""
        assert self._parted is not None
        parted, left = self._parted
        since = at + 1 - left
        found = self._search(at, self._near(at, parted, parted + _WINDOW + since))
        if (found is None or found[1] < _SURE) and since >= _WIDE:
            wide = self._search(at, self._everywhere(at, parted))
            if wide is not None and wide[1] >= _WIDE and (found is None or wide[1] > found[1]):
                found = wide
        if found is not None:
            place, length = found
            self.run = length - 1
            self._met = (place + 1 - length, at + 1 - length)
            self._arrive(place + 1)
        elif since <= _BLIND and parted + since < len(self._source):
            self.run = 0
            self._met = (parted + since, at + 1)
            self._arrive(parted + since)
        else:
            self.run = -1
            self._rename = None
            return
        if self.run >= _SURE:
            self._settle()

    def _search(self, at: int, places: list[int]) -> tuple[int, int] | None:
        """The place where the most tokens up to `at` match (the first such place), and how many do."""
        source, tokens = self._source, self._tokens
        best, most = -1, 0
        for place in places:
            length = 1
            while length < _BACK and length <= min(place, at) and source[place - length] == tokens[at - length]:
                length += 1
            if length > most:
                best, most = place, length
        return (best, most) if most else None

    def _near(self, at: int, start: int, end: int) -> list[int]:
        """The places from `start` up to `end` that hold the token at `at`."""
        window, token = self._source[start:end], self._tokens[at]
        places: list[int] = []
        place = -1
        for _ in range(window.count(token)):
            place = window.index(token, place + 1)
            places.append(start + place)
        return places

    def _everywhere(self, at: int, parted: int) -> list[int]:
        """All places that end with the last `_WIDE` tokens, those after the parting first."""
        if self._places is None:
            self._places = {}
            for place in range(_WIDE - 1, len(self._source)):
                self._places.setdefault(tuple(self._source[place + 1 - _WIDE : place + 1]), []).append(place)
        places = self._places.get(tuple(self._tokens[at + 1 - _WIDE : at + 1]), [])
        return [p for p in places if p >= parted] + [p for p in reversed(places) if p < parted]

    def _settle(self) -> None:
        """The meeting is confirmed: remember the substitution before it, if it is short and neither side is empty."""
        parted, met = self._parted, self._met
        self._parted = self._met = None
        if parted is None or met is None:
            return
        old, new = tuple(self._source[parted[0] : met[0]]), tuple(self._tokens[parted[1] : met[1]])
        if not (0 < len(old) <= _LONGEST and 0 < len(new) <= _LONGEST):
            return
        known = self._renames.setdefault(old[0], [])
        known[:] = [Rename(old, new), *(rename for rename in known if rename.old != old)][:4]  # most recent first
        if self._rename is None and self._cursor < len(self._source):
            self._rename = self._rename_at(self._cursor)
