"""Incremental decoding equals whole decoding, for any tokens on every kind of vocabulary."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulgur.text.stream import StreamDecoder

from .vocabularies import byte_level, metaspace, sentencepiece

KINDS = [byte_level, sentencepiece, metaspace]


def stream(tokenizer, tokens, **options) -> list[str]:
    decoder = StreamDecoder(tokenizer, **options)
    return [*(decoder.feed(token) for token in tokens), decoder.flush()]


def token_lists(tokenizer):
    """Any tokens, with single bytes, which make and break characters, as often as all others together."""
    every = st.integers(0, tokenizer.vocab_size - 1)
    single = [token for token in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(token)) == 1]
    return st.lists(st.one_of(every, st.sampled_from(single)), max_size=40)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, deadline=None)
@given(data=st.data(), skip=st.booleans(), continuation=st.booleans())
def test_stream_equals_whole(kind, data, skip, continuation):
    tokenizer = kind()
    tokens = data.draw(token_lists(tokenizer))
    pieces = stream(tokenizer, tokens, skip_special=skip, continuation=continuation)
    assert "".join(pieces) == tokenizer.decode(tokens, skip_special=skip, continuation=continuation)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_byte_level_equals_the_library(data, skip):
    """Invalid UTF-8 included."""
    tokenizer = byte_level()
    literal = tokenizer.token_id("é<x>")  # the library takes its letters for bytes
    tokens = [token for token in data.draw(token_lists(tokenizer)) if token != literal]
    assert tokenizer.decode(tokens, skip_special=skip) == tokenizer.backend.decode(tokens, skip_special_tokens=skip)


@settings(max_examples=300, deadline=None)
@given(text=st.text(), data=st.data())
def test_sentencepiece_equals_the_library(text, data):
    """For valid text; of a broken run of bytes the library also drops the characters that are whole."""
    tokenizer = sentencepiece()
    tokens = tokenizer.encode(text, special=False, continuation=data.draw(st.booleans()))
    assert "".join(stream(tokenizer, tokens)) == tokenizer.backend.decode(tokens)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(min_size=1))
def test_characters_are_never_halved(kind, text):
    tokenizer = kind()
    tokens = tokenizer.encode(text, special=False, continuation=True)
    pieces = stream(tokenizer, tokens, continuation=True)
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
    assert pieces[-1] == ""


def test_a_character_comes_with_its_last_byte():
    tokenizer = sentencepiece()
    tokens = [tokenizer.token_id(f"<0x{byte:02X}>") for byte in "🙂".encode()]
    assert stream(tokenizer, tokens) == ["", "", "", "🙂", ""]
    assert stream(tokenizer, tokens[:3]) == ["", "", "", "\ufffd"]


def test_kept_special_tokens_are_shown():
    tokenizer = byte_level()
    end, file = tokenizer.token_id("<|end|>"), tokenizer.token_id("<|file|>")
    assert "".join(stream(tokenizer, [file, end], keep=[end])) == "<|end|>"


def test_skipped_tokens_do_not_break_a_character():
    tokenizer = byte_level()
    first, second = (tokenizer.token_id(character) for character in "Ã©")  # the two bytes of é
    assert stream(tokenizer, [first, tokenizer.token_id("<|end|>"), second]) == ["", "", "é", ""]
