"""A vocabulary that went through GGUF's keys gives the same tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from fulgur.errors import FulgurError
from fulgur.text.gguf_vocabulary import _PATTERNS
from fulgur.text.tokenizer import Tokenizer

from .vocabularies import TEXT, byte_level, byte_level_backend, sentencepiece, tokenizer_of

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def metadata_of(tokenizer: Tokenizer, model: str, **more: Any) -> dict[str, Any]:
    """What a converter writes."""
    backend = tokenizer.backend
    added = backend.get_added_tokens_decoder()
    tokens = [backend.id_to_token(number) for number in range(tokenizer.vocab_size)]
    merges = [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]
    types = [
        (CONTROL if added[number].special else USER_DEFINED) if number in added else NORMAL
        for number in range(len(tokens))
    ]
    prefix = "tokenizer.ggml."
    return {
        f"{prefix}model": model,
        f"{prefix}tokens": tokens,
        f"{prefix}merges": merges,
        f"{prefix}token_type": types,
        f"{prefix}eos_token_id": min(tokenizer.eos_ids),
        **{f"{prefix}{key}": value for key, value in more.items()},
    }


@settings(deadline=None)
@given(text=st.text() | st.sampled_from(TEXT))
def test_byte_level_round_trip(text):
    tokenizer = byte_level()
    rebuilt = _from_byte_level()
    assert rebuilt.encode(text) == tokenizer.encode(text)


def _from_byte_level() -> Tokenizer:
    return Tokenizer.from_gguf_metadata(metadata_of(byte_level(), "gpt2", pre="gpt-2"))


def test_byte_level_details():
    tokenizer, rebuilt = byte_level(), _from_byte_level()
    assert rebuilt.vocab_size == tokenizer.vocab_size
    assert [rebuilt.token_bytes(n) for n in range(rebuilt.vocab_size)] == [
        tokenizer.token_bytes(n) for n in range(tokenizer.vocab_size)
    ]
    assert rebuilt.special_ids == tokenizer.special_ids and rebuilt.eos_ids == tokenizer.eos_ids
    assert rebuilt.special_names == {"eos_token": "<|eos|>"}
    assert not rebuilt.add_bos


def sentencepiece_metadata() -> dict[str, Any]:
    tokenizer = sentencepiece()
    metadata = metadata_of(tokenizer, "llama", bos_token_id=1)
    tokens = metadata["tokenizer.ggml.tokens"]
    metadata["tokenizer.ggml.token_type"] = [
        UNKNOWN if n == 0 else CONTROL if n < 3 else BYTE if n < 259 else NORMAL for n in range(len(tokens))
    ]
    # A piece that is made earlier is more frequent, and so scores higher: that is how SentencePiece numbers them.
    del metadata["tokenizer.ggml.merges"]
    metadata["tokenizer.ggml.scores"] = [0.0 if n < 259 else float(-n) for n in range(len(tokens))]
    return metadata


@settings(deadline=None)
@given(text=st.text() | st.sampled_from(TEXT), continuation=st.booleans())
def test_sentencepiece_round_trip(text, continuation):
    rebuilt = Tokenizer.from_gguf_metadata(sentencepiece_metadata())
    tokens = rebuilt.encode(text, special=False, continuation=continuation)
    assert tokens == sentencepiece().encode(text, special=False, continuation=continuation)
    assert rebuilt.add_bos and rebuilt.bos_id == 1 and rebuilt.eos_ids == {2}


def test_sentencepiece_without_the_space():
    metadata = {**sentencepiece_metadata(), "tokenizer.ggml.add_space_prefix": False}
    rebuilt = Tokenizer.from_gguf_metadata(metadata)
    assert rebuilt.encode("return") == sentencepiece().encode("return", continuation=True)
    assert rebuilt.decode(rebuilt.encode(" x")) == " x"


# How the families' published tokenizers cut these texts.
SPLITS = {
    ("llama-bpe", "12345"): ["123", "45"],
    ("qwen2", "12345"): ["1", "2", "3", "4", "5"],
    ("starcoder", "x12"): ["x", "1", "2"],
    ("gpt-2", "12345 don't"): ["12345", " don", "'t"],
    ("llama-bpe", "a\n\n b"): ["a", "\n\n", " b"],
    ("llama-bpe", "  x"): [" ", " x"],
    ("qwen2", "!?\n"): ["!?\n"],
    ("deepseek-coder", "12 a\nb"): ["1", "2", " a", "\n", "b"],
    ("deepseek-coder", " x,y"): [" x", ",", "y"],
}


@pytest.mark.parametrize(("name", "text"), SPLITS)
def test_patterns_split_as_the_families_do(name, text):
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[name]]
    pieces = pre_tokenizers.Sequence(steps).pre_tokenize_str(text)
    assert [piece for piece, _ in pieces] == SPLITS[name, text]


def test_each_known_name_builds_and_keeps_text():
    backend = byte_level_backend(["<|eos|>"])
    tokenizer = tokenizer_of(backend, eos="<|eos|>")
    for name in _PATTERNS:
        rebuilt = Tokenizer.from_gguf_metadata(metadata_of(tokenizer, "gpt2", pre=name))
        for text in TEXT[:4]:
            assert rebuilt.decode(rebuilt.encode(text)) == text


def test_qwen_normalises_to_composed_characters():
    rebuilt = Tokenizer.from_gguf_metadata(metadata_of(byte_level(), "gpt2", pre="qwen2"))
    assert rebuilt.encode("e\u0301") == rebuilt.encode("\u00e9")


def test_chat_templates_are_read():
    metadata = metadata_of(byte_level(), "gpt2", pre="gpt-2")
    metadata |= {"tokenizer.chat_template": "D", "tokenizer.chat_template.tool_use": "T"}
    assert Tokenizer.from_gguf_metadata(metadata).chat_templates == {"default": "D", "tool_use": "T"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "unsupported type 'bert'"),
        ({"tokenizer.ggml.pre": "novel"}, "unknown pre-tokenizer 'novel'"),
        ({"tokenizer.ggml.merges": None}, r"no tokenizer\.ggml\.merges"),
        ({"tokenizer.ggml.tokens": None}, r"no tokenizer\.ggml\.tokens"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "but 2 token types"),
    ],
)
def test_what_cannot_be_read_is_named(change, message):
    with pytest.raises(FulgurError, match=message):
        Tokenizer.from_gguf_metadata({**metadata_of(byte_level(), "gpt2", pre="gpt-2"), **change})


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("qwen35", ["HelloWorld", " it", "'s", " ", "1", "2", " e\u0301t", " /", "x"]),
        ("gpt-4o", ["Hello", "World", " it's", " ", "12", " e\u0301t", " /", "x"]),
        ("tekken", ["Hello", "World", " it", "'s", " ", "1", "2", " e\u0301t", " /", "x"]),
    ],
)
def test_patterns_of_newer_families(name: str, pieces: list[str]) -> None:
    split = pre_tokenizers.Split(Regex(_PATTERNS[name][0]), "isolated")
    assert [piece for piece, _ in split.pre_tokenize_str("".join(pieces))] == pieces
