"""How JSON under a schema is brought to its end before the tokens run out.

A model may write a string or nest objects for as long as it is let. So an answer with a limit is watched: from time to
time the shortest way to its end is followed on a copy of the matcher, and when there is just room for it left, only
tokens of that way are allowed. Which token is next on it is a matter of rank. Inside a string its end comes first.
Outside, the end of the answer, closing brackets, separators, `null`, numbers, an empty string, opening brackets.

Where none of these may come, as in a string that must be an address, the nearest place where one may is searched for,
character by character. Where none is found the answer is not watched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from fulgur.text.tokenizer import Tokenizer

Allowed: TypeAlias = npt.NDArray[np.uint8]

_QUOTE, _BACKSLASH = b'"\\'
_NEVER = 255
_LONGEST = 8192  # tokens of a way that is looked for
_INNER = 3  # rank inside a string of what does not end it
_NEAR = 2  # rank up to which a token ends a string or a value
_CONTENT = (4, 9)  # ranks outside of what may have to go on: numbers, and what is no JSON by itself
_MOST_PROBES = 600  # characters that are tried in a search
_REPEATED = b"0aA"  # characters that are tried many times over
_MOST_REPEATED = 64
_MOST_CONTENT = 1024  # tokens that go on with strings and values for want of a way out of them
_WORDS = (b"null", b"false", b"true")
_FIRST_LOOK = 1024  # tokens before the limit: most answers have ended by then
_SLACK = 8  # the way that is taken may be a little longer than the one that was looked at


class Ranks:
    """How near each token brings the end, in a string and outside; less is nearer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.bytes = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.outside = np.array([_outside(token) for token in self.bytes], np.uint8)
        self.inside = np.array([_inside(token) for token in self.bytes], np.uint8)
        self.outside[sorted(tokenizer.eos_ids)] = 0
        printable = {bytes([code]) for code in range(0x20, 0x7F)} - {b'"', b"\\"}
        self.characters = {token: number for number, token in enumerate(self.bytes) if token in printable}

    def state_after(self, state: int, token: int) -> int:
        """Where a token leaves: outside of strings (0), in one (1), behind a backslash (2)."""
        for byte in self.bytes[token] if 0 <= token < len(self.bytes) else b"":
            if state == 2:
                state = 1
            elif byte == _QUOTE:
                state = 1 - state
            elif byte == _BACKSLASH and state == 1:
                state = 2
        return state


def _inside(token: bytes) -> int:
    if token[:1] != b'"':
        return _INNER
    return 1 if not token[1:].strip(b"]}") else 2


def _outside(token: bytes) -> int:
    if not token.strip():
        return 9
    if not token.strip(b"]}"):
        return 1
    if not token.strip(b"]},:"):
        return 2
    if any(token in word for word in _WORDS):
        return 3
    if token.isdigit():
        return 4
    return {b'""': 5, b'"': 6, b"[": 7, b"{": 8}.get(token, 9)


class Closing:
    """Watches one answer of at most `limit` tokens."""

    def __init__(self, ranks: Ranks, limit: int) -> None:
        self._ranks = ranks
        self._limit = limit
        self._states = [0]  # after each token
        self._look_at = max(0, limit - _FIRST_LOOK)  # tokens written when the way is looked for next
        self._jump = 0  # by how much the way may grow with a token that opens something
        self._now = False
        self._lost = False  # no way was found

    def took(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._states.append(self._ranks.state_after(self._states[-1], token))

    def gave_back(self, count: int) -> None:
        del self._states[len(self._states) - count :]

    def needed(self, matcher: LLMatcher) -> int | None:
        """Tokens of the shortest way to the end, by the ranks, from where the matcher stands; None: none was found."""
        probe = matcher.deep_copy()
        state, count, size = self._states[-1], 0, len(self._ranks.bytes)
        fruitless: set[bytes] = set()
        content = 0
        while count < _LONGEST and not probe.is_stopped():
            forced = list(probe.compute_ff_tokens())
            if not forced:
                allowed = allowed_tokens(probe, size)
                nearest = self._nearest(allowed, state)
                if not len(nearest):
                    return None  # a dead end: the sampler will say so
                forced = [int(nearest[0])]
                if state == 0 and self._ranks.outside[forced[0]] == 0:
                    break
                if self._is_content(forced[0], state):
                    key = allowed.tobytes()
                    if key not in fruitless and (way := self._way_out(probe, state)):
                        forced = way
                    else:
                        fruitless.add(key)
                        content += 1
                        if content > _MOST_CONTENT:
                            return None
            if not probe.consume_tokens(forced):
                return None
            count += len(forced)
            for token in forced:
                state = self._ranks.state_after(state, token)
        return count + 1 if count < _LONGEST else None  # and the end token

    def check(self, matcher: LLMatcher) -> int:
        """The tokens of the shortest answer, if they are more than the limit; else 0."""
        needed = self._look(matcher)
        return needed if needed is not None and needed > self._limit else 0

    def narrow(self, matcher: LLMatcher, allowed: Allowed) -> Allowed:
        """The tokens that may come next: all that are allowed, or near the limit those that bring the end nearest."""
        if not self._now and not self._lost and len(self._states) - 1 >= self._look_at:
            self._look(matcher)
        if not self._now:
            return allowed
        narrowed = np.zeros_like(allowed)
        state = self._states[-1]
        nearest = self._nearest(allowed, state)
        if len(nearest) and self._is_content(int(nearest[0]), state):
            nearest = np.array(self._way_out(matcher, state)[:1] or nearest, np.int64)
        narrowed[nearest] = 1
        return narrowed

    def _look(self, matcher: LLMatcher) -> int | None:
        written = len(self._states) - 1
        if written < self._look_at:
            return 0
        needed = self.needed(matcher)
        if needed is None:
            self._lost = True
            return None
        self._jump = max(self._jump, needed)
        spare = self._limit - written - needed - needed // 8 - _SLACK
        self._now = spare <= 0
        # What is opened meanwhile has to be closed too: the nearer the limit, the more often a look.
        self._look_at = written + max(1, min(spare // 2, spare - self._jump // 2))
        return needed

    def _is_content(self, token: int, state: int) -> bool:
        """Whether the nearest token only goes on with a string or a value."""
        if state:
            return bool(self._ranks.inside[token] == _INNER)
        return int(self._ranks.outside[token]) in _CONTENT

    def _way_out(self, matcher: LLMatcher, state: int) -> list[int]:
        """The fewest characters after which the string or value may end; empty when the search found none.

        Places where the same tokens are allowed count as one. So what has to be counted, as in `minLength`, is not
        found by the search itself: one character many times over is tried too.
        """
        ranks = self._ranks.inside if state else self._ranks.outside
        size, probes = len(self._ranks.bytes), 0
        seen: set[bytes] = set()
        queue: deque[tuple[LLMatcher, list[int]]] = deque([(matcher, [])])
        while queue and probes < _MOST_PROBES:
            at, way = queue.popleft()
            allowed = allowed_tokens(at, size)
            for token in self._ranks.characters.values():
                if not allowed[token]:
                    continue
                probes += 1
                probe = at.deep_copy()
                if not probe.consume_tokens([token]):
                    continue
                then = allowed_tokens(probe, size)
                if ranks[then > 0].min(initial=_NEVER) <= _NEAR:
                    return [*way, token]
                if (key := then.tobytes()) not in seen:
                    seen.add(key)
                    queue.append((probe, [*way, token]))
        found = [way for code in _REPEATED if (way := self._repeated(matcher, bytes([code]), ranks))]
        return min(found, key=len, default=[])

    def _repeated(self, matcher: LLMatcher, character: bytes, ranks: npt.NDArray[np.uint8]) -> list[int]:
        token, probe = self._ranks.characters.get(character), matcher.deep_copy()
        if token is None:
            return []
        for count in range(1, _MOST_REPEATED + 1):
            if not probe.consume_tokens([token]):
                return []
            if ranks[allowed_tokens(probe, len(ranks)) > 0].min(initial=_NEVER) <= _NEAR:
                return [token] * count
        return []

    def _nearest(self, allowed: Allowed, state: int) -> npt.NDArray[np.int64]:
        """Of the allowed tokens those of the least rank."""
        tokens = np.flatnonzero(allowed)
        ranks = (self._ranks.inside if state else self._ranks.outside)[tokens]
        return tokens[ranks == ranks.min(initial=_NEVER)]


def allowed_tokens(matcher: LLMatcher, vocab_size: int) -> Allowed:
    """One byte a token: 1 where it may come next."""
    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    return np.unpackbits(bits, count=vocab_size, bitorder="little")
