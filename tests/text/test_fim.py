"""Fill-in-the-middle prompts in each family's order."""

from __future__ import annotations

import pytest

from fulgur.errors import FulgurError
from fulgur.text.edit_format import completion_pieces, encode_pieces
from fulgur.text.fim import FAMILIES, fim_family, fim_prompt, fim_stop_tokens
from fulgur.text.tokenizer import Tokenizer

from .vocabularies import byte_level, byte_level_backend, sentencepiece_backend, tokenizer_of

PREFIX, SUFFIX = "def add(first", " second):\n    return <|fim_middle|>"


def byte_level_with(*markers: str, eos: str = "<|endoftext|>") -> Tokenizer:
    return tokenizer_of(byte_level_backend([eos, *(piece for piece in markers if piece != eos)]), eos=eos)


def shown(tokenizer: Tokenizer, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, skip_special=False, continuation=True)


@pytest.mark.parametrize(
    ("family", "markers", "prompt"),
    [
        ("qwen-coder", ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"], "{0}{P}{1}{S}{2}"),
        ("codegemma", ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_separator|>"], "{0}{P}{1}{S}{2}"),
        ("starcoder", ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], "{0}{P}{1}{S}{2}"),
        ("santacoder", ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"], "{0}{P}{1}{S}{2}"),
        ("deepseek-coder", ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"], "{0}{P}{1}{S}{2}"),
        ("codestral", ["[PREFIX]", "[SUFFIX]"], "{1}{S}{0}{P}"),
    ],
)
def test_order_of_each_family(family, markers, prompt):
    tokenizer = byte_level_with(*markers)
    found = fim_family(tokenizer)
    assert found is not None and found.name == family
    tokens = fim_prompt(tokenizer, PREFIX, SUFFIX)
    assert shown(tokenizer, tokens) == prompt.format(*markers, P=PREFIX, S=SUFFIX)
    assert len([token for token in tokens if token in tokenizer.special_ids]) == len(markers[:3])


def test_every_family_is_tested_here():
    assert {family.name for family in FAMILIES} == {
        *("fulgur", "qwen-coder", "codegemma", "starcoder", "santacoder", "deepseek-coder", "codestral", "codellama"),
    }


def test_fulgur_prompt_is_the_trained_format():
    tokenizer = byte_level()
    family = fim_family(tokenizer)
    assert family is not None and family.name == "fulgur"
    expected = encode_pieces(tokenizer, completion_pieces("src/a.py", PREFIX, SUFFIX))
    assert fim_prompt(tokenizer, PREFIX, SUFFIX, path="src/a.py") == expected
    ends = {tokenizer.token_id("<|end|>"), tokenizer.token_id("<|eos|>"), tokenizer.token_id("<|file|>")}
    assert ends <= set(fim_stop_tokens(tokenizer))


def test_codellama_puts_a_space_before_the_prefix_only():
    backend = sentencepiece_backend(["<s>", "</s>", "▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"])
    tokenizer = tokenizer_of(backend, eos="</s>", bos="<s>")
    tokenizer.add_bos = True
    tokens = fim_prompt(tokenizer, "return x", "self")
    ids = [tokenizer.token_id(piece) for piece in ("<s>", "▁<PRE>", "▁<SUF>", "▁<MID>")]
    assert tokens[:2] == ids[:2] and tokens[-1] == ids[3]
    cut = tokens.index(ids[2])
    assert shown(tokenizer, tokens[2:cut]) == " return x"
    assert shown(tokenizer, tokens[cut + 1 : -1]) == "self"
    assert tokenizer.token_id("▁<EOT>") in fim_stop_tokens(tokenizer)


def test_stop_tokens_are_markers_and_ends():
    tokenizer = byte_level_with("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<other>")
    names = {"<|endoftext|>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>"}
    assert {shown(tokenizer, [token]) for token in fim_stop_tokens(tokenizer)} == names


def test_a_model_without_it_is_an_error_with_a_hint():
    tokenizer = byte_level_with()
    assert fim_family(tokenizer) is None
    with pytest.raises(FulgurError, match="no fill-in-the-middle tokens") as error:
        fim_prompt(tokenizer, "a", "b")
    assert error.value.hint
