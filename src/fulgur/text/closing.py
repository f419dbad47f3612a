"""Brings JSON under a schema to its end before the tokens run out.

A model may extend a string or nest objects for as long as it is allowed to. So an answer with a limit is watched: from
time to time the shortest path to its end is followed on a copy of the matcher, and when the tokens left just suffice
for it, only tokens on that path are allowed. Ranks decide which token is next on the path. Inside a string its end
comes first. Outside, the order is: the end of the answer, closing brackets, separators, `null`, numbers, an empty
string, opening brackets.

Where none of these is allowed, as in a string that must be an address, a search tries characters until it finds the
nearest place where one is. When it finds none, the answer is not watched.
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
_LONGEST = 8192  # tokens of the longest path that is followed
_INNER = 3  # rank inside a string of a token that does not end it
_NEAR = 2  # rank up to which a token ends a string or a value
_CONTENT = (4, 9)  # ranks outside strings of what may have to go on: numbers, and what is not JSON by itself
_MOST_PROBES = 600  # characters that are tried in a search
_REPEATED = b"0aA"  # characters that are tried many times over
_MOST_REPEATED = 64
_MOST_CONTENT = 1024  # tokens that continue strings and values for lack of a way out of them
_WORDS = (b"null", b"false", b"true")
_FIRST_LOOK = 1024  # tokens before the limit: most answers have ended by then
_SLACK = 8  # the path that is taken may be a little longer than the one that was measured


class Ranks:
    """How near each token brings the end, inside a string and outside; lower is nearer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.bytes = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.outside = np.array([_outside(token) for token in self.bytes], np.uint8)
        self.inside = np.array([_inside(token) for token in self.bytes], np.uint8)
        self.outside[sorted(tokenizer.eos_ids)] = 0
        printable = {bytes([code]) for code in range(0x20, 0x7F)} - {b'"', b"\\"}
        self.characters = {token: number for number, token in enumerate(self.bytes) if token in printable}

    def state_after(self, state: int, token: int) -> int:
        """The state after a token: outside strings (0), in one (1), after a backslash (2)."""
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
        self._look_at = max(0, limit - _FIRST_LOOK)  # the number of written tokens at which to look next
        self._jump = 0  # how much the path may grow by a token that opens something
        self._now = False
        self._lost = False  # no path was found

    def took(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._states.append(self._ranks.state_after(self._states[-1], token))

    def gave_back(self, count: int) -> None:
        del self._states[len(self._states) - count :]

    def needed(self, matcher: LLMatcher) -> int | None:
        """The tokens of the shortest path by the ranks from the matcher's state to the end; None when none was
        found."""
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
        # What is opened meanwhile has to be closed too, so look more often near the limit.
        self._look_at = written + max(1, min(spare // 2, spare - self._jump // 2))
        return needed

    def _is_content(self, token: int, state: int) -> bool:
        """Whether the nearest token only continues a string or a value."""
        if state:
            return bool(self._ranks.inside[token] == _INNER)
        return int(self._ranks.outside[token]) in _CONTENT

    def _way_out(self, matcher: LLMatcher, state: int) -> list[int]:
        """The fewest characters after which the string or value may end; empty when the search found none.

        States that allow the same tokens count as one. So the search itself cannot find an end that depends on a count,
        as with `minLength`: repetitions of one character are tried too.
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
        """The allowed tokens of the lowest rank."""
        tokens = np.flatnonzero(allowed)
        ranks = (self._ranks.inside if state else self._ranks.outside)[tokens]
        return tokens[ranks == ranks.min(initial=_NEVER)]


def allowed_tokens(matcher: LLMatcher, vocab_size: int) -> Allowed:
    """One byte per token: 1 where it may come next."""
    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    return np.unpackbits(bits, count=vocab_size, bitorder="little")
