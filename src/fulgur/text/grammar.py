"""Grammars that an answer must follow: which tokens may come next, by llguidance.

`GrammarSpec` is plain data that crosses the process boundary. `Grammar` is a spec that was found valid,
`GrammarMatcher` the state of one answer. llguidance is imported when the first grammar is made, not with this file.
"""

from __future__ import annotations

import functools
import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from fulgur.errors import FulgurError
from fulgur.text.closing import Closing, Ranks, allowed_tokens

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from fulgur.text.tokenizer import Tokenizer

# JSON is written compactly: a small model that may write blanks writes blanks (60% of an answer). A schema may ask for
# other separators with llguidance's own keyword, `x-guidance`.
_JSON = {"whitespace_flexible": False}

_MESSAGE = 300  # characters of an error: some quote the whole grammar

_KEPT_MATCHERS = 16
_MAX_LEXER_STATES = 50_000  # of one matcher; about 2 kB each, so a pattern cannot fill the engine's memory


class LimitTooLow(FulgurError):
    """No answer that follows the grammar is that short."""


@dataclass(frozen=True)
class GrammarSpec:
    """What the answer must be. `source` is a JSON schema (as JSON text), a regular expression or a Lark grammar."""

    kind: Literal["json_schema", "regex", "lark"]
    source: str


@dataclass(frozen=True)
class Grammar:
    """A valid grammar; make it with one of the class methods."""

    spec: GrammarSpec
    compiled: str

    @classmethod
    def json_schema(cls, schema: dict[str, Any] | bool | str) -> Grammar:
        """From a JSON schema, as an object or as JSON text."""
        return cls.from_spec(GrammarSpec("json_schema", schema if isinstance(schema, str) else json.dumps(schema)))

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """From a regular expression (Rust syntax: no look-around, no back-references) that the whole answer matches."""
        return cls.from_spec(GrammarSpec("regex", pattern))

    @classmethod
    def lark(cls, source: str) -> Grammar:
        """From a Lark grammar in llguidance's dialect; the rule `start` is the answer."""
        return cls.from_spec(GrammarSpec("lark", source))

    @classmethod
    def from_spec(cls, spec: GrammarSpec) -> Grammar:
        """Check a spec; a FulgurError says what is wrong with it."""
        return _checked(spec)

    @classmethod
    def unchecked(cls, spec: GrammarSpec) -> Grammar:
        """From a spec that was checked elsewhere; an error in it shows when its matcher is made."""
        return cls(spec, _compiled(spec))


def _compiled(spec: GrammarSpec) -> str:
    """The grammar in llguidance's own form; cheap, the work is done when it is checked or a matcher is made."""
    from llguidance import LLMatcher

    if spec.kind == "json_schema":
        try:
            return LLMatcher.grammar_from_json_schema(spec.source, defaults=_JSON)
        except ValueError as error:
            raise _invalid(spec, str(error)) from None
    if spec.kind == "regex":
        return LLMatcher.grammar_from_regex(spec.source)
    if spec.kind == "lark":
        return LLMatcher.grammar_from_lark(spec.source)
    raise FulgurError(f"Unknown grammar kind {spec.kind!r}.", hint="Use json_schema, regex or lark.")


@functools.lru_cache(maxsize=256)
def _checked(spec: GrammarSpec) -> Grammar:
    from llguidance import LLMatcher

    compiled = _compiled(spec)
    broken, messages = LLMatcher.validate_grammar_with_warnings(compiled)
    if broken:
        raise _invalid(spec, messages[0])
    return Grammar(spec, compiled)


def _invalid(spec: GrammarSpec, message: str) -> FulgurError:
    name = {"json_schema": "JSON schema", "regex": "regular expression", "lark": "Lark grammar"}[spec.kind]
    hint = None
    if message.startswith("Unimplemented keys"):
        hint = "Remove these keywords from the schema, or check them after the answer."
    return FulgurError(f"The {name} cannot be used: {_brief(message)}", hint=hint)


def _brief(message: str) -> str:
    """llguidance's message without the dump of its inner state."""
    text = re.split(r"\n<(?:state|backtrace|grammar|non-verbose)", message, maxsplit=1)[0].strip()
    return text if len(text) <= _MESSAGE else f"{text[:_MESSAGE]}…"


class GrammarMatcher:
    """The state of one answer in its grammar.

    An end token is accepted when the answer is complete; after it nothing is. A token that is refused changes nothing.
    `limit`: the most tokens the answer may have; JSON is brought to its end before that (`closing.py`).
    """

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer, limit: int | None = None) -> None:
        self._eos_ids = tokenizer.eos_ids
        self._vocab_size = tokenizer.vocab_size
        vocabulary = _vocabulary(tokenizer)
        self._matcher = vocabulary.matcher(grammar)
        self._ended = False
        self._closing: Closing | None = None
        if limit is not None and grammar.spec.kind == "json_schema":
            self._closing = Closing(vocabulary.ranks, limit)
            if needed := self._closing.check(self._matcher):
                raise LimitTooLow(
                    f"the limit is {limit} tokens, and the shortest answer that follows the schema takes {needed}",
                    hint="Raise the limit.",
                )

    given = False  # what a grammar allows is still the model's choice

    def mask(self, out: np.ndarray) -> None:
        """Set `out` (uint8 or bool, one entry per token of the model) to 1 where the token may come next, else to 0.

        `out` may be longer than the tokenizer's vocabulary, as many models' logits are; the rest is never allowed.
        """
        if self._ended:
            out[:] = 0
            return
        allowed = allowed_tokens(self._matcher, self._vocab_size)
        self._check()
        if self._closing is not None:
            allowed = self._closing.narrow(self._matcher, allowed)
        size = min(self._vocab_size, out.shape[0])
        out[:size] = allowed[:size]
        out[size:] = 0

    def accept(self, token: int) -> bool:
        """Take one token; False, and no change, if the grammar does not allow it."""
        return self.try_tokens([token]) == 1

    def try_tokens(self, tokens: Sequence[int]) -> int:
        """Take tokens up to the first that is not allowed; returns how many were taken (`rollback` gives them back)."""
        taken, ends = self._allowed_run(tokens)
        taken = self._matcher.try_consume_tokens(list(tokens[:taken])) if taken else 0
        self._check()
        if ends is not None and taken == ends and self.is_accepting():
            self._ended = True
            taken += 1
        if self._closing is not None:
            self._closing.took(tokens[:taken])
        return taken

    def validate(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` would be taken one after the other; changes nothing."""
        taken = self.try_tokens(tokens)
        self.rollback(taken)
        return taken

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens."""
        if self._closing is not None:
            self._closing.gave_back(count)
        if count and self._ended:
            self._ended = False
            count -= 1
        if count:
            self._matcher.rollback(count)
            self._check()

    def is_accepting(self) -> bool:
        """Whether the answer so far is complete, though it may go on."""
        return bool(self._matcher.is_accepting())

    def is_done(self) -> bool:
        """Whether the answer is complete and nothing but an end token may follow."""
        if self._ended:
            return True
        self._check()  # a matcher in error says that it has stopped
        return bool(self._matcher.is_stopped())

    def forced_tokens(self) -> list[int]:
        """Tokens that the grammar leaves no choice about here: free drafts for speculation."""
        if self.is_done():
            return []
        tokens = list(self._matcher.compute_ff_tokens())
        self._check()
        return tokens

    def _allowed_run(self, tokens: Sequence[int]) -> tuple[int, int | None]:
        """How many leading tokens the matcher may see, and the place of an end token that stops the run."""
        if self._ended:
            return 0, None
        for place, token in enumerate(tokens):
            if token in self._eos_ids:
                return place, place
            if not 0 <= token < self._vocab_size:
                return place, None
        return len(tokens), None

    def _check(self) -> None:
        """llguidance does not raise: a grammar that outgrew its limits leaves the matcher in an error state."""
        if self._matcher.is_error():
            raise FulgurError(
                f"The grammar cannot be followed any further: {_brief(self._matcher.get_error())}",
                hint="Make the grammar simpler.",
            )


class _Vocabulary:
    """llguidance's view of one tokenizer, and matchers at their start, ready to be copied."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        if not tokenizer.eos_ids:
            raise FulgurError(
                "The model defines no end token, so an answer under a grammar could not end.",
                hint="Add eos_token_id to its generation_config.json.",
            )
        eos = sorted(tokenizer.eos_ids)
        self.tokenizer: LLTokenizer = LLTokenizer(TokenizerWrapper(_WrappedTokenizer(tokenizer, eos[0])), eos_token=eos)
        self._starts: OrderedDict[GrammarSpec, LLMatcher] = OrderedDict()
        self.ranks = Ranks(tokenizer)

    def matcher(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        start = self._starts.pop(grammar.spec, None)
        if start is None:
            limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
            start = LLMatcher(self.tokenizer, grammar.compiled, log_level=0, limits=limits)
            if start.is_error():
                raise _invalid(grammar.spec, start.get_error())
        self._starts[grammar.spec] = start
        if len(self._starts) > _KEPT_MATCHERS:
            self._starts.popitem(last=False)
        return start.deep_copy()


class _WrappedTokenizer:
    """What llguidance asks of a tokenizer. It must not hold the Tokenizer, which is the key of the cache."""

    def __init__(self, tokenizer: Tokenizer, eos: int) -> None:
        self.eos_token_id = eos
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids | tokenizer.eos_ids)
        self._encode = tokenizer.continuation_encoder()

    def __call__(self, text: str | bytes) -> list[int]:
        """The tokens of bytes that a grammar forces: exactly these bytes, no space put before them."""
        return self._encode(text.decode() if isinstance(text, bytes) else text)


_vocabularies: WeakKeyDictionary[Tokenizer, _Vocabulary] = WeakKeyDictionary()


def _vocabulary(tokenizer: Tokenizer) -> _Vocabulary:
    if tokenizer not in _vocabularies:
        _vocabularies[tokenizer] = _Vocabulary(tokenizer)
    return _vocabularies[tokenizer]
