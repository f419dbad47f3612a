"""A small byte-level tokenizer and a small model folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from byte_tokenizer import EOS, VOCAB, write_tokenizer

from fulgur.text.tokenizer import Tokenizer


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
        norm_eps=1e-6, rope_theta=10000.0, rope_scaling=None, max_context=512, tied=True, eos_ids=(EOS,), bos_id=None,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    write_hf_folder(folder, config, random_model(config, seed=1))
    write_tokenizer(folder)
    yield folder
