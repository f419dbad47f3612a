"""Small tokenizers of each kind, trained here and now."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from fulgur.text.special import SpecialTokens
from fulgur.text.tokenizer import Tokenizer

TEXT = [
    "def add(first, second):\n    return first + second\n",
    'class Point:\n    """A point."""\n\n    def __init__(self, x, y):\n        self.x = x\n        self.y = y\n',
    'for name in ["straße", "naïve", "東京", "日本語", "🙂🙃"]:\n    print(f"{name}: ünï", end="\\n")\n',
    '{"name": "read_file", "arguments": {"path": "src/main.py", "lines": [1, 2, 3], "all": true}}\n',
] * 4

FULGUR = [
    "<|pad|>",
    "<|eos|>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|file|>",
    "<|region|>",
    "<|end|>",
]


def byte_level_backend(special: list[str], size: int = 700) -> Backend:
    """A GPT-2 style byte-level BPE."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT, trainer)
    return backend


def sentencepiece_backend(special: list[str], *, metaspace: bool = False) -> Backend:
    """A Llama-2 style BPE: `▁` for a space, one `<0xNN>` piece a byte; few characters of its own, so bytes are used."""
    backend = Backend(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if metaspace:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    names = ["<unk>", *special]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=names, limit_alphabet=60, show_progress=False)
    backend.train_from_iterator(TEXT, trainer)
    learned = json.loads(backend.to_str())["model"]
    pieces = [piece for piece, _ in sorted(learned["vocab"].items(), key=lambda item: item[1]) if piece not in names]
    ordered = [*names, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    merges = [tuple(pair) for pair in learned["merges"]]
    backend.model = models.BPE(
        vocab={piece: number for number, piece in enumerate(ordered)},
        merges=merges,
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    rebuilt = Backend(backend.model)
    rebuilt.normalizer, rebuilt.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    rebuilt.decoder = (
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first", split=False)])
        if metaspace
        else decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    )
    rebuilt.add_special_tokens(names)
    return rebuilt


def tokenizer_of(backend: Backend, *, eos: str, bos: str | None = None) -> Tokenizer:
    names = {"eos_token": eos, **({"bos_token": bos} if bos else {})}
    bos_id = backend.token_to_id(bos) if bos else None
    return Tokenizer(backend, SpecialTokens(names, frozenset([backend.token_to_id(eos)]), bos_id))


@functools.cache
def byte_level() -> Tokenizer:
    backend = byte_level_backend(FULGUR)
    backend.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("    \t", special=False), "é<x>"])
    return tokenizer_of(backend, eos="<|eos|>")


@functools.cache
def sentencepiece() -> Tokenizer:
    return tokenizer_of(sentencepiece_backend(["<s>", "</s>"]), eos="</s>", bos="<s>")


@functools.cache
def metaspace() -> Tokenizer:
    return tokenizer_of(sentencepiece_backend(["<s>", "</s>"], metaspace=True), eos="</s>", bos="<s>")


def write_folder(folder: Path, backend: Backend, **files: dict[str, Any] | str) -> Path:
    """A model folder: tokenizer.json and the named files (`tokenizer_config={...}` becomes tokenizer_config.json)."""
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        if isinstance(content, str):
            (folder / f"{name}.jinja").write_text(content)
        else:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return folder
