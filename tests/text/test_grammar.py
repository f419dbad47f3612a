"""Whatever is sampled under a grammar's mask follows the grammar."""

from __future__ import annotations

import gc
import json
import re
import weakref

import numpy as np
import pytest

from fulgur.errors import FulgurError
from fulgur.text.grammar import Grammar, GrammarMatcher, GrammarSpec, LimitTooLow
from fulgur.text.special import SpecialTokens
from fulgur.text.tokenizer import Tokenizer

from .vocabularies import byte_level, byte_level_backend, sentencepiece, tokenizer_of

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["file", "folder"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 4096},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,5}$"}, "maxItems": 3},
        "owner": {
            "type": "object",
            "properties": {"id": {"type": "number"}},
            "required": ["id"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "kind", "size", "tags", "owner"],
    "additionalProperties": False,
}


def sample(grammar: Grammar, tokenizer: Tokenizer, seed: int, limit: int = 400) -> str | None:
    """An answer of a model with random weights: random logits under the mask. None if it has not ended in time."""
    generator = np.random.default_rng(seed)
    matcher = GrammarMatcher(grammar, tokenizer)
    mask = np.empty(tokenizer.vocab_size + 7, dtype=np.uint8)
    tokens: list[int] = []
    while len(tokens) < limit:
        matcher.mask(mask)
        assert mask.any() and not mask[tokenizer.vocab_size :].any()
        logits = np.where(mask, generator.standard_normal(mask.shape[0]), -np.inf)
        token = int(logits.argmax())
        assert matcher.accept(token)
        if token in tokenizer.eos_ids:
            assert matcher.is_done()
            return tokenizer.decode(tokens, continuation=True)
        tokens.append(token)
    return None


NODE = {"$ref": "#/$defs/node"}
_NODE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": NODE}},
    "required": ["name", "children"],
    "additionalProperties": False,
}
_LIST = {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}, "required": ["next"]}
_TREE = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
_WIDE = {
    "type": "object",
    "properties": {f"f{i}": {"type": ["string", "number", "boolean", "array"][i % 4]} for i in range(60)},
    "required": [f"f{i}" for i in range(60)],
    "additionalProperties": False,
}
_SHAPES = {
    "type": "array",
    "minItems": 2,
    "items": {"type": "string", "minLength": 3, "pattern": '^["}a]+$'},
}


def _field(**schema: object) -> dict[str, object]:
    return {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("schema", "limit"),
    [
        ({"$defs": {"node": _NODE}, **NODE}, 60),
        (_LIST, 40),
        (_TREE, 40),
        (_WIDE, 700),
        (_SHAPES, 40),
        (SCHEMA, 160),
        ({"type": "object"}, 30),
        (_field(type="string", format="email"), 40),
        (_field(type="string", format="uri"), 40),
        (_field(type="string", format="duration"), 40),
        (_field(type="string", format="date-time"), 60),
        (_field(type="string", pattern=r"\d{3}"), 40),
        (_field(type="number", exclusiveMinimum=0, exclusiveMaximum=1), 40),
    ],
)
def test_json_ends_within_its_limit(schema: dict[str, object], limit: int, seed: int) -> None:
    """Random logits open strings and objects wherever they may; still every answer ends, and is JSON without blanks."""
    tokenizer = byte_level()
    generator = np.random.default_rng(seed)
    matcher = GrammarMatcher(Grammar.json_schema(schema), tokenizer, limit)
    mask = np.empty(tokenizer.vocab_size, dtype=np.uint8)
    tokens: list[int] = []
    while not matcher.is_done():
        matcher.mask(mask)
        logits = generator.standard_normal(len(mask))
        logits[[token for token in range(len(mask)) if tokenizer.token_bytes(token) in (b"{", b"[", b"\\")]] += 9
        guess = [int(np.where(mask, logits, -np.inf).argmax()), 0]
        assert matcher.validate(guess) >= 1  # a draft is taken back
        assert matcher.accept(guess[0])
        tokens.append(guess[0])
        assert len(tokens) <= limit
    text = tokenizer.decode([token for token in tokens if token not in tokenizer.eos_ids], continuation=True)
    assert json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False).count(" ") <= text.count(" ")
    assert "\n" not in text and ": " not in re.sub(r'"(\\.|[^"\\])*"', "", text)


def test_a_limit_that_no_answer_fits_says_what_is_needed() -> None:
    tokenizer = byte_level()
    with pytest.raises(LimitTooLow, match=r"the limit is 50 tokens, and the shortest answer .* takes [0-9]{3}"):
        GrammarMatcher(Grammar.json_schema(_WIDE), tokenizer, 50)
    GrammarMatcher(Grammar.regex("a{100}"), tokenizer, 50)


def test_where_no_way_to_the_end_is_found_nothing_is_claimed() -> None:
    matcher = GrammarMatcher(Grammar.json_schema({"type": "string", "pattern": "^[a-z]*xyzzy$"}), byte_level(), 30)
    assert matcher.accept(byte_level().encode('"')[0])


def fits(value: object) -> bool:
    """The schema above, checked by hand."""
    return (
        isinstance(value, dict)
        and set(value) == {"name", "kind", "size", "tags", "owner"}
        and isinstance(value["name"], str)
        and len(value["name"]) <= 12
        and value["kind"] in ("file", "folder")
        and type(value["size"]) is int
        and 0 <= value["size"] <= 4096
        and len(value["tags"]) <= 3
        and all(re.fullmatch("[a-z]{1,5}", tag) for tag in value["tags"])
        and set(value["owner"]) == {"id"}
        and type(value["owner"]["id"]) in (int, float)
    )


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_json_schema_always_validates(kind):
    grammar = Grammar.json_schema(SCHEMA)
    answers = [sample(grammar, kind(), seed) for seed in range(12)]
    ended = [answer for answer in answers if answer is not None]
    assert len(ended) >= 8
    for answer in ended:
        assert fits(json.loads(answer)), answer


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_regex_always_matches(kind):
    pattern = r"(GET|POST) /[a-z]{1,8}(/[0-9]{1,3})? (ok|naïve 東京)"
    for seed in range(20):
        answer = sample(Grammar.regex(pattern), kind(), seed)
        assert answer is not None and re.fullmatch(pattern, answer), answer


def test_lark_always_parses():
    """Sums of small numbers: Python itself is the judge."""
    grammar = Grammar.lark('start: term ("+" term){0,4}\nterm: NUMBER | "(" start ")"\nNUMBER: /[1-9][0-9]{0,3}/\n')
    ended = [answer for seed in range(20) if (answer := sample(grammar, byte_level(), seed)) is not None]
    assert len(ended) >= 10
    for answer in ended:
        assert set(answer) <= set("0123456789+()") and eval(answer) > 0


def test_special_tokens_in_lark():
    tokenizer = byte_level()
    file = tokenizer.token_id("<|file|>")
    matcher = GrammarMatcher(Grammar.lark('start: "a" <|file|> "b"'), tokenizer)
    mask = np.empty(tokenizer.vocab_size, dtype=bool)
    assert matcher.accept(tokenizer.encode("a")[0])
    matcher.mask(mask)
    assert list(np.flatnonzero(mask)) == [file]
    # Spelled out in characters it is not the token.
    assert matcher.validate(tokenizer.encode("<|file|>", special=False)) == 0
    assert matcher.try_tokens([file, *tokenizer.encode("b")]) == 2 and matcher.is_done()


def test_special_tokens_are_not_text():
    tokenizer = byte_level()
    mask = np.empty(tokenizer.vocab_size, dtype=bool)
    matcher = GrammarMatcher(Grammar.regex("(.|\n)*"), tokenizer)
    matcher.mask(mask)
    assert {token for token in tokenizer.special_ids if mask[token]} == tokenizer.eos_ids


def test_speculation_takes_back_what_it_tried():
    tokenizer = byte_level()
    eos = next(iter(tokenizer.eos_ids))
    matcher = GrammarMatcher(Grammar.regex("[a-c]{2,4}"), tokenizer)
    a, b, z = (tokenizer.token_id(letter) for letter in "abz")
    before, after = np.empty(tokenizer.vocab_size, np.uint8), np.empty(tokenizer.vocab_size, np.uint8)
    matcher.mask(before)
    assert matcher.validate([a, b, z, a]) == 2
    assert matcher.validate([a, b, eos, a]) == 3  # nothing follows an end
    assert matcher.validate([a, eos]) == 1  # too short to end
    assert matcher.validate([tokenizer.vocab_size + 5]) == 0 == matcher.validate([-1])
    assert matcher.validate([]) == 0
    matcher.mask(after)
    assert (before == after).all()
    assert matcher.try_tokens([a, b, eos]) == 3 and matcher.is_done()
    matcher.mask(after)
    assert not after.any() and not matcher.accept(a)
    matcher.rollback(2)
    assert not matcher.is_done() and not matcher.is_accepting()
    assert matcher.try_tokens([a, b, b, b]) == 3 and matcher.is_done()
    matcher.mask(after)
    assert set(np.flatnonzero(after)) == tokenizer.eos_ids
    matcher.rollback(4)
    matcher.mask(after)
    assert (before == after).all()


def test_accept_refuses_and_goes_on():
    tokenizer = byte_level()
    matcher = GrammarMatcher(Grammar.regex("ab"), tokenizer)
    assert not matcher.accept(tokenizer.token_id("b"))
    assert not matcher.accept(next(iter(tokenizer.eos_ids)))
    assert matcher.accept(tokenizer.token_id("a")) and matcher.accept(tokenizer.token_id("b")) and matcher.is_done()


def test_forced_tokens_are_what_must_follow():
    tokenizer = byte_level()
    matcher = GrammarMatcher(Grammar.regex('\\{"name": "[a-z]+"\\}'), tokenizer)
    forced = matcher.forced_tokens()
    assert forced and '{"name": "'.startswith(tokenizer.decode(forced))
    assert matcher.validate(forced) == len(forced)


def test_matchers_of_one_grammar_are_independent():
    tokenizer = byte_level()
    grammar = Grammar.regex("ab")
    first = GrammarMatcher(grammar, tokenizer)
    assert first.accept(tokenizer.token_id("a"))
    second = GrammarMatcher(grammar, tokenizer)
    assert not second.accept(tokenizer.token_id("b")) and first.accept(tokenizer.token_id("b"))


def test_white_space_cannot_go_on_for_ever():
    tokenizer = byte_level()
    matcher = GrammarMatcher(Grammar.json_schema({"type": "object"}), tokenizer)
    line = tokenizer.encode("\n")
    assert matcher.try_tokens(tokenizer.encode('{\n  "a": 1')) > 0
    assert matcher.validate([*line, *line, *line]) < 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Grammar.json_schema({"type": "objekt"}), "JSON schema cannot be used: Invalid type: objekt"),
        (lambda: Grammar.json_schema("{bad"), "JSON schema cannot be used"),
        (lambda: Grammar.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (lambda: Grammar.regex("(a"), "unclosed group"),
        (lambda: Grammar.lark("start: missing"), 'unknown name: "missing"'),
        (lambda: Grammar.from_spec(GrammarSpec("bnf", "x")), "Unknown grammar kind 'bnf'"),  # type: ignore[arg-type]
        (lambda: GrammarMatcher(Grammar.lark("start: <|nope|>"), byte_level()), "unknown special token"),
    ],
)
def test_a_wrong_grammar_says_what_is_wrong(make, message):
    with pytest.raises(FulgurError, match=re.escape(message)):
        make()


def test_a_model_without_end_is_refused():
    tokenizer = Tokenizer(byte_level_backend(["<|pad|>"]), SpecialTokens())
    with pytest.raises(FulgurError, match="no end token"):
        GrammarMatcher(Grammar.regex("a"), tokenizer)


def test_the_cache_does_not_keep_a_tokenizer_alive():
    tokenizer = tokenizer_of(byte_level_backend(["<|eos|>"]), eos="<|eos|>")
    matcher = GrammarMatcher(Grammar.regex("a"), tokenizer)
    gone = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert gone() is None and not matcher.is_done()


def test_a_grammar_that_grew_too_large_has_not_come_to_its_end():
    """llguidance calls a matcher in error "stopped"; an answer must not pass for whole because of that."""
    tokenizer = byte_level()
    matcher = GrammarMatcher(Grammar.regex(r"((.?){100}){100}\x00"), tokenizer)
    mask = np.empty(tokenizer.vocab_size, dtype=np.uint8)
    with pytest.raises(FulgurError, match="any further"):
        for token in tokenizer.encode("some text that goes on and on " * 20):
            matcher.mask(mask)
            assert matcher.accept(token)
    for ask in (matcher.is_done, matcher.forced_tokens):
        with pytest.raises(FulgurError, match="any further"):
            ask()
