"""The embedded models' tokenizer: byte-level BPE made for code, trained once and shipped in the package.

A newline and the indentation after it are one piece, so a line break never merges with the text around it, and the
depth of a block is one token. Digits are single tokens. A word may include the one character before it (` name`,
`.append`, `(self`, `_id`).
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fulgur.text.edit_format import SPECIAL_TOKENS
from fulgur.workspace.folders import TOKENIZER
from lab.train.documents import read_documents

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VOCABULARY = 8192

PIECES = (
    r"\r?\n[ \t]*"  # a line break with the indentation of the next line
    r"|[ .]?__\p{L}+(?:_\p{L}+)*__"  # __init__ and the like
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"  # a word, with one character before it
    r"|\p{N}"  # one digit
    r"| ?[^\s\p{L}\p{N}]+"  # operators and brackets
    r"|[^\S\r\n]+(?!\S)"  # spaces inside a line; the last one is left to the word after it
    r"|\s"
)


def untrained() -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """Train a tokenizer. Special tokens take the first ids in their fixed order, then the 256 bytes, then the
    merges."""
    from tokenizers import pre_tokenizers, trainers

    tokenizer = untrained()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        max_token_length=41,  # up to forty spaces of indentation, but no longer rulers
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class CodeTokenizer:
    """The tokenizer for training: special tokens in a file's text are encoded as plain text."""

    def __init__(self, path: Path = TOKENIZER) -> None:
        from tokenizers import Tokenizer

        self._plain = Tokenizer.from_file(str(path))
        self._plain.encode_special_tokens = True
        self._parsing = Tokenizer.from_file(str(path))
        self.vocab_size = int(self._plain.get_vocab_size())

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        tokenizer = self._parsing if special else self._plain
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._plain.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, tokens: list[int]) -> str:
        return str(self._plain.decode(tokens, skip_special_tokens=False))

    def token_id(self, piece: str) -> int | None:
        return self._plain.token_to_id(piece)  # type: ignore[no-any-return]


def sample(archive: Path, megabytes: float, seed: int = 0) -> Iterator[str]:
    """Texts of randomly chosen training documents, with each file's path as the model sees it."""
    rng = random.Random(seed)
    chosen = [f"{document.path}\n{document.text}" for document in read_documents(archive) if document.split == "train"]
    rng.shuffle(chosen)
    budget = megabytes * 1e6
    for text in chosen:
        if budget <= 0:
            return
        budget -= len(text)
        yield text


def bytes_per_token(tokenizer: Tokenizer, texts: Iterable[str]) -> float:
    size = tokens = 0
    for text in texts:
        size += len(text.encode())
        tokens += len(tokenizer.encode(text, add_special_tokens=False).ids)
    return size / max(tokens, 1)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.train tokenizer", description="Train the tokenizer on a sample of the corpus."
    )
    parser.add_argument("--corpus", type=Path, required=True, help="the archive that `gather` wrote")
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--out", type=Path, default=TOKENIZER)
    args = parser.parse_args(argv)
    tokenizer = train_tokenizer(sample(args.corpus, args.megabytes), args.vocabulary)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out))
    heldout = [d.text for d in read_documents(args.corpus) if d.split == "heldout" and d.path.endswith(".py")]
    print(
        json.dumps(
            {
                "vocabulary": tokenizer.get_vocab_size(),
                "heldout_bytes_per_token": round(bytes_per_token(tokenizer, heldout), 3),
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
