"""A tokenizer from the vocabulary inside a GGUF file.

GGUF names the splitting pattern (`tokenizer.ggml.pre`) instead of holding it, so the patterns of the families that
Fulgur runs are written here. An unknown name is an error: another pattern would silently give other tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fulgur.errors import FulgurError
from fulgur.text.pieces import SPACE

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_PREFIX = "tokenizer.ggml."

# `tokenizer.ggml.token_type`
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = [_WORDS + r"\p{N}{1,3}" + _REST]
_QWEN2 = [_WORDS + r"\p{N}" + _REST]
_QWEN35 = [_QWEN2[0].replace(r"?\p{L}+|", r"?[\p{L}\p{M}]+|").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")]
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"


def _by_case(ending: str, digits: str) -> list[str]:
    """Patterns for words in which no capital follows a small letter."""
    word = r"[^\r\n\p{L}\p{N}]?"
    words = f"{word}{_UPPER}*{_LOWER}+{ending}|{word}{_UPPER}+{_LOWER}*{ending}"
    return [words + "|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


_O200K = _by_case(_ENDING, r"\p{N}{1,3}")  # gpt-oss
_TEKKEN = _by_case("", r"\p{N}")  # Mistral
_STARCODER = [r"\p{N}", _GPT2]
_DEEPSEEK_CODER = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"]

# Patterns, each applied to the pieces that the one before left.
_PATTERNS: dict[str, list[str]] = {
    "default": [_GPT2],
    "gpt-2": [_GPT2],
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": _QWEN35,
    "gpt-4o": _O200K,
    "tekken": _TEKKEN,
    "starcoder": _STARCODER,
    "refact": _STARCODER,
    "deepseek-coder": _DEEPSEEK_CODER,
}


def build(metadata: dict[str, Any]) -> Backend:
    """The backend for a GGUF's `tokenizer.ggml.*` keys."""
    model = metadata.get(_PREFIX + "model")
    tokens = pieces_of(metadata)
    if model == "gpt2":
        backend = _byte_level(metadata, tokens)
    elif model == "llama":
        backend = _sentencepiece(metadata, tokens)
    else:
        raise FulgurError(
            f"The GGUF's vocabulary has the unsupported type {model!r}.",
            hint="Fulgur reads `gpt2` and `llama` vocabularies; use the model's Hugging Face folder instead.",
        )
    _add_tokens(backend, tokens, _types(metadata, tokens))
    return backend


def pieces_of(metadata: dict[str, Any]) -> list[str]:
    """The vocabulary's pieces in the order of their ids."""
    return [_text(piece) for piece in _required(metadata, "tokens")]


def adds_bos(metadata: dict[str, Any]) -> bool:
    """Whether plain text starts with the beginning-of-text token: what the file says, else what is usual for its
    kind."""
    default = metadata.get(_PREFIX + "model") == "llama" or _PATTERNS.get(metadata.get(_PREFIX + "pre", "")) is _LLAMA3
    return bool(metadata.get(_PREFIX + "add_bos_token", default))


def _byte_level(metadata: dict[str, Any], tokens: Sequence[str]) -> Backend:
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    name = metadata.get(_PREFIX + "pre", "default")
    if name not in _PATTERNS:
        raise FulgurError(
            f"The GGUF uses the unknown pre-tokenizer {name!r}.",
            hint="Use the model's Hugging Face folder, whose tokenizer.json holds the pattern.",
        )
    merges = [_pair(_text(merge)) for merge in _required(metadata, "merges")]
    # Llama 3 and Mistral take a word that is in the vocabulary as one token, without going through merges.
    whole_words = _PATTERNS[name] in (_LLAMA3, _TEKKEN)
    backend = Backend(models.BPE(vocab=_numbered(tokens), merges=merges, ignore_merges=whole_words))
    if _PATTERNS[name] in (_QWEN2, _QWEN35):
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[name]]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(metadata: dict[str, Any], tokens: Sequence[str]) -> Backend:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    scores = [float(score) for score in _required(metadata, "scores")]
    types = _types(metadata, tokens)
    unknown = next((piece for piece, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    vocabulary = _numbered(tokens)
    model = models.BPE(
        vocab=vocabulary,
        merges=_merges_of_scores(vocabulary, scores),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Backend(model)
    steps: list[Any] = [normalizers.Replace(" ", SPACE)]
    undo: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get(_PREFIX + "add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(SPACE))
        undo.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(undo)
    return backend


def _merges_of_scores(vocabulary: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Merges from SentencePiece's scores, one per piece: every way to make a piece from two, the best piece first."""
    ranked = []
    for piece, number in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-scores[number], vocabulary[left], vocabulary[right], left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _add_tokens(backend: Backend, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Control and user-defined pieces are matched in text before anything else."""
    from tokenizers import AddedToken

    added = [
        AddedToken(piece, normalized=False, special=kind in (_UNKNOWN, _CONTROL))
        for piece, kind in zip(tokens, types, strict=True)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]
    backend.add_tokens(added)


def _required(metadata: dict[str, Any], key: str) -> Sequence[Any]:
    value = metadata.get(_PREFIX + key)
    if value is None:
        raise FulgurError(
            f"The GGUF has no {_PREFIX}{key}.", hint="Convert the model again with its vocabulary in the file."
        )
    return list(value)


def _types(metadata: dict[str, Any], tokens: Sequence[str]) -> list[int]:
    """The type of each piece; files without them have normal pieces only."""
    given = metadata.get(_PREFIX + "token_type")
    types = [_NORMAL] * len(tokens) if given is None else [int(kind) for kind in given]
    if len(types) != len(tokens):
        raise FulgurError(f"The GGUF has {len(tokens)} tokens but {len(types)} token types; the file is damaged.")
    return types


def _text(piece: str | bytes) -> str:
    return piece.decode("utf-8") if isinstance(piece, bytes) else str(piece)


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(tokens)}


def _pair(merge: str) -> tuple[str, str]:
    """`left right`; a space that belongs to a piece is never plain in a byte-level vocabulary."""
    left, _, right = merge.partition(" ")
    return left, right
