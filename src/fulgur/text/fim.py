"""Fill-in-the-middle prompts: the text before and after the cursor, in the order a model was trained on."""

from __future__ import annotations

from dataclasses import dataclass

from fulgur.errors import FulgurError
from fulgur.text.special import known
from fulgur.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class FimFamily:
    """How one family writes the prompt.

    prefix, suffix: the tokens before each part. middle: the token after both, None where the answer simply follows.
    suffix_first: the part after the cursor comes first. file: the token before a file's name.
    stops: tokens that end the answer, besides those above and the model's own end tokens.
    needs: other tokens that distinguish this family from one with the same three.
    """

    name: str
    prefix: str
    suffix: str
    middle: str | None
    suffix_first: bool = False
    file: str | None = None
    stops: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    def fits(self, tokenizer: Tokenizer) -> bool:
        """Whether the vocabulary has all of this family's tokens."""
        wanted = [self.prefix, self.suffix, self.middle, *self.needs]
        return all(tokenizer.token_id(piece) is not None for piece in wanted if piece)


_FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")

# The first that fits is taken, so the more demanding ones come before those that share their tokens.
FAMILIES: tuple[FimFamily, ...] = (
    FimFamily("fulgur", *_FIM, file="<|file|>", stops=("<|end|>", "<|eos|>"), needs=("<|file|>", "<|end|>")),
    FimFamily(
        "qwen-coder",
        *_FIM,
        file="<|file_sep|>",
        stops=("<|fim_pad|>", "<|endoftext|>", "<|repo_name|>"),
        needs=("<|file_sep|>",),
    ),
    FimFamily("codegemma", *_FIM, stops=("<|file_separator|>",)),
    FimFamily(
        "starcoder",
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        stops=("<fim_pad>", "<file_sep>", "<filename>", "<|endoftext|>"),
    ),
    FimFamily("santacoder", "<fim-prefix>", "<fim-suffix>", "<fim-middle>", stops=("<fim-pad>", "<|endoftext|>")),
    FimFamily(
        "deepseek-coder",
        "<｜fim▁begin｜>",
        "<｜fim▁hole｜>",
        "<｜fim▁end｜>",
        stops=("<｜end▁of▁sentence｜>", "<|EOT|>"),
    ),
    FimFamily("codellama", "▁<PRE>", "▁<SUF>", "▁<MID>", stops=("▁<EOT>",)),
    FimFamily("codestral", "[PREFIX]", "[SUFFIX]", None, suffix_first=True),
)


def fim_family(tokenizer: Tokenizer) -> FimFamily | None:
    """The family whose tokens this vocabulary has, or None."""
    return next((family for family in FAMILIES if family.fits(tokenizer)), None)


def fim_prompt(tokenizer: Tokenizer, prefix: str, suffix: str, *, path: str | None = None) -> list[int]:
    """Tokens after which the model writes what belongs between `prefix` and `suffix`.

    path: the file's name, given to the families that were trained with one (fulgur, qwen-coder).
    Both texts are plain: a special token spelled in them stays characters.
    """
    family = _family(tokenizer)
    before = tokenizer.encode(prefix, special=False)
    after = tokenizer.encode(suffix, special=False, continuation=True)
    first, second = [*_token(tokenizer, family.prefix), *before], [*_token(tokenizer, family.suffix), *after]
    prompt = [*second, *first] if family.suffix_first else [*first, *second]
    if family.middle:
        prompt += _token(tokenizer, family.middle)
    if path is not None and family.file:
        prompt = [*_token(tokenizer, family.file), *tokenizer.encode(f"{path}\n", special=False), *prompt]
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        prompt = [tokenizer.bos_id, *prompt]
    return prompt


def fim_stop_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens that end a fill-in-the-middle answer: the family's markers and the model's own end tokens."""
    family = _family(tokenizer)
    markers = [family.prefix, family.suffix, family.middle, family.file, *family.stops]
    return tuple(sorted({*known(tokenizer.token_id, filter(None, markers)), *tokenizer.eos_ids}))


def _family(tokenizer: Tokenizer) -> FimFamily:
    family = fim_family(tokenizer)
    if family is None:
        raise FulgurError(
            "The model has no fill-in-the-middle tokens, so it cannot complete at a cursor.",
            hint="Use a code model trained for it, such as Fulgur's embedded model, Qwen2.5-Coder or StarCoder2.",
        )
    return family


def _token(tokenizer: Tokenizer, piece: str) -> list[int]:
    return known(tokenizer.token_id, [piece])
