"""A small byte-level tokenizer and a small model folder, made here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from fulgur.text.tokenizer import Tokenizer

EOS = 256
VOCAB = 300


def write_tokenizer(folder: Path) -> None:
    """256 bytes, then <|eos|> and two more special tokens, then common pairs up to VOCAB."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)}
    vocab |= {"<|eos|>": EOS, "<|turn|>": 257, "<|mark|>": 258}
    merges = []
    for pair in [a + b for a in "abcdefg" for b in "hijklmn"][: VOCAB - len(vocab)]:
        vocab[pair] = len(vocab)
        merges.append((pair[0], pair[1]))
    backend = Backend(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True) for t in ("<|eos|>", "<|turn|>", "<|mark|>")])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    made = Tokenizer.from_folder(folder)
    assert made.vocab_size == VOCAB and made.eos_ids == {EOS}
    return made


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    from fulgur.model.config import ModelConfig
    from fulgur.model.random import random_model, write_hf_folder

    config = ModelConfig(
        family="qwen3", vocab_size=VOCAB, d_model=64, n_layers=2, n_heads=2, n_kv_heads=1, head_dim=32, d_ffn=64,
        norm_eps=1e-6, rope_theta=10000.0, rope_scaling=None, max_context=512, tied=True, qkv_bias=False,
        qk_norm=True, eos_ids=(EOS,), bos_id=None,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    write_hf_folder(folder, config, random_model(config, seed=1))
    write_tokenizer(folder)
    yield folder
