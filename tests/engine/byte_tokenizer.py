"""A small byte-level tokenizer, made here."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

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
