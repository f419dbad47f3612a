"""Encoding, decoding, the bytes of tokens, and what a model folder says about its special tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from fulgur.errors import FulgurError
from fulgur.text.pieces import BYTE_OF_CHARACTER
from fulgur.text.special import SpecialTokens
from fulgur.text.tokenizer import Tokenizer

from .vocabularies import byte_level, byte_level_backend, metaspace, sentencepiece, write_folder

KINDS = [byte_level, sentencepiece, metaspace]
CODE = 'def f(x):\n\treturn "straße 東京 🙂"  # <|end|> <tool_call>\n'


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text())
def test_encode_then_decode_is_the_text(kind, text):
    tokenizer = kind()
    for continuation in (False, True):
        tokens = tokenizer.encode(text, special=False, continuation=continuation)
        assert tokenizer.decode(tokens, skip_special=False, continuation=continuation) == _as_encoded(
            text, tokenizer, continuation
        )


def _as_encoded(text: str, tokenizer: Tokenizer, continuation: bool) -> str:
    """Metaspace adds no space to a text that starts with one, so decoding takes that one away."""
    if tokenizer is metaspace() and not continuation and text.startswith((" ", "▁")):
        text = text[1:]
    return text if tokenizer is byte_level() else text.replace("▁", " ")


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_tokens_make_the_text(kind):
    tokenizer = kind()
    tokens = tokenizer.encode(CODE, continuation=True)
    assert b"".join(map(tokenizer.token_bytes, tokens)) == CODE.encode()


def test_every_single_byte_has_a_token():
    tokenizer = byte_level()
    for character, byte in BYTE_OF_CHARACTER.items():
        token = tokenizer.token_id(character)
        assert token is not None and tokenizer.token_bytes(token) == bytes([byte])
    pieces = sentencepiece()
    for byte in range(256):
        token = pieces.token_id(f"<0x{byte:02X}>")
        assert token is not None and pieces.token_bytes(token) == bytes([byte])


def test_added_tokens_are_literal_bytes():
    """Latin letters in an added token are letters, not the bytes they stand for elsewhere in the vocabulary."""
    tokenizer = byte_level()
    token = tokenizer.token_id("é<x>")
    assert token is not None
    assert tokenizer.token_bytes(token) == "é<x>".encode()
    assert tokenizer.decode([token]) == "é<x>"


def test_unused_ids_have_no_bytes():
    tokenizer = byte_level()
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b"" == tokenizer.token_bytes(-1)


def test_special_tokens_in_text():
    tokenizer = byte_level()
    end, call = tokenizer.token_id("<|end|>"), tokenizer.token_id("<tool_call>")
    parsed = tokenizer.encode(CODE)
    assert end in parsed and call in parsed
    plain = tokenizer.encode(CODE, special=False)
    assert end not in plain and call not in plain
    assert tokenizer.decode(plain) == CODE
    assert tokenizer.decode(parsed) == CODE.replace("<|end|>", "")  # <tool_call> is added, not special


def test_plain_encoding_keeps_the_numbers_of_added_text():
    """Without control tokens, other added tokens move up in the library; their ids must not."""
    tokenizer = byte_level()
    blanks = tokenizer.token_id("    \t")
    assert blanks in tokenizer.encode("x    \ty <|end|>", special=False)


def test_continuation_has_no_space_before_it():
    for tokenizer in (sentencepiece(), metaspace()):
        assert tokenizer.token_bytes(tokenizer.encode("return")[0]).startswith(b" ")
        assert not tokenizer.token_bytes(tokenizer.encode("return", continuation=True)[0]).startswith(b" ")


def test_encode_adds_nothing_by_itself(tmp_path: Path):
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, sentencepiece().backend))
    assert tokenizer.bos_id not in tokenizer.encode("hello")
    assert tokenizer.encode("") == []


def test_a_folder_says_its_special_tokens(tmp_path: Path):
    backend = byte_level_backend(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    folder = write_folder(
        tmp_path,
        backend,
        tokenizer_config={
            "eos_token": {"content": "<|im_end|>", "special": True},
            "bos_token": None,
            "pad_token": "<|endoftext|>",
            "chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}],
            "added_tokens_decoder": {
                str(backend.get_vocab_size()): {"content": "<think>", "special": False, "normalized": False}
            },
        },
        generation_config={"eos_token_id": [0, 2]},
        config={"eos_token_id": 0, "bos_token_id": 0},
        special_tokens_map={"unk_token": "<|endoftext|>"},
    )
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.eos_ids == {0, 2}
    assert tokenizer.bos_id is None  # tokenizer_config.json says so, whatever config.json carries
    assert tokenizer.special_names == {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
    }
    assert tokenizer.chat_templates == {"default": "a", "tool_use": "b"}
    assert tokenizer.encode("<think>") == [backend.get_vocab_size()]
    (tmp_path / "chat_template.jinja").write_text("c")
    assert Tokenizer.from_folder(folder).chat_template == "c"


def test_bare_folder_finds_usual_ends(tmp_path: Path):
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, byte_level_backend(["<|endoftext|>"])))
    assert tokenizer.eos_ids == {0} and tokenizer.bos_id is None and tokenizer.chat_template is None


def test_a_packed_folder_may_share_its_tokenizer(tmp_path: Path):
    own = Tokenizer.from_folder(write_folder(tmp_path, byte_level_backend(["<|a|>", "<|b|>"])))
    (tmp_path / "packed").mkdir()
    config = {"eos_token_id": 1, "fulgur": {"tokenizer": "../tokenizer.json"}}
    (tmp_path / "packed" / "config.json").write_text(json.dumps(config))
    shared = Tokenizer.from_folder(tmp_path / "packed")
    assert shared.encode(CODE, special=False) == own.encode(CODE, special=False)
    assert shared.eos_ids == {1}  # the other files are the folder's own


def test_mistakes_are_named(tmp_path: Path):
    with pytest.raises(FulgurError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(FulgurError, match="not a tokenizer"):
        Tokenizer.from_folder(tmp_path)
    write_folder(tmp_path, byte_level_backend(["<|eos|>"]))
    (tmp_path / "tokenizer_config.json").write_text("[1")
    with pytest.raises(FulgurError, match=r"tokenizer_config\.json cannot be read"):
        Tokenizer.from_folder(tmp_path)


def test_files_of_different_models_are_refused(tmp_path: Path):
    added = {"added_tokens_decoder": {"90000": {"content": "<new>", "special": True}}}
    folder = write_folder(tmp_path, byte_level_backend(["<|eos|>"]), tokenizer_config=added)
    with pytest.raises(FulgurError, match=r"'<new>' 90000"):
        Tokenizer.from_folder(folder)


def test_other_decoders_are_refused(tmp_path: Path):
    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(FulgurError, match="WordPiece"):
        Tokenizer.from_folder(write_folder(tmp_path, backend))


def test_holes_in_the_vocabulary_count():
    """Ids run to the highest one, even where some are unused."""
    backend = Backend(models.BPE(vocab={"a": 0, "b": 5}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("<|eos|>", special=True)])
    tokenizer = Tokenizer(backend, SpecialTokens())
    assert tokenizer.vocab_size == 6 and tokenizer.token_bytes(3) == b"" and tokenizer.token_bytes(5) == b"b"
