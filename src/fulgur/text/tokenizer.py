"""Text to tokens and back, from a model folder's tokenizer.json or a GGUF's vocabulary."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fulgur.errors import FulgurError
from fulgur.small_files import read_small
from fulgur.text.pieces import PieceRules, rules_of
from fulgur.text.special import SpecialTokens, read_json, read_special_tokens, special_tokens_of_gguf

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

# Added tokens that steer a model though their files do not call them special: <tool_call>, <think>, [INST] …
# Not HTML's tags, which some vocabularies have as single tokens.
_MARKER = re.compile(r"<[^<>\s]*[_|｜][^<>\s]*>|</?think>|\[/?[A-Z_]+\]")


_LONG = 4096  # characters


class Tokenizer:
    """One vocabulary. Safe to share between threads; `encode` never adds a beginning-of-text token by itself."""

    def __init__(self, backend: Backend, special: SpecialTokens, *, add_bos: bool | None = None) -> None:
        """`add_bos`: whether plain text given to this model starts with `bos_id`; None asks the backend."""
        self.backend = backend
        backend.no_truncation()
        backend.no_padding()
        self._added = backend.get_added_tokens_decoder()
        self._rules: PieceRules = rules_of(_state(backend.decoder), _state(backend.pre_tokenizer))
        self.vocab_size: int = max(backend.get_vocab().values(), default=-1) + 1
        self.eos_ids: frozenset[int] = special.eos_ids
        self.bos_id: int | None = special.bos_id
        self.special_names: dict[str, str] = special.names
        self.chat_templates: dict[str, str] = special.templates
        self.special_ids: frozenset[int] = frozenset(number for number, token in self._added.items() if token.special)
        if add_bos is None:
            add_bos = self.bos_id is not None and backend.encode("").ids[:1] == [self.bos_id]
        self.add_bos: bool = add_bos
        self.control_pattern = _any_of(token.content for token in self._added.values() if _is_control(token))
        self.special_pattern = _any_of(token.content for token in self._added.values() if token.special)
        self._bytes: list[bytes | None] = [None] * self.vocab_size
        self._variants: dict[tuple[bool, bool], tuple[Backend, dict[int, int]]] = {(True, False): (backend, {})}

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read tokenizer.json and what lies beside it (tokenizer_config, generation_config, config, templates)."""
        from tokenizers import Tokenizer as Backend

        folder = Path(folder)
        path = tokenizer_file(folder)
        if not path.is_file():
            raise FulgurError(
                f"{folder} has no tokenizer.json.",
                hint="Use a model folder in the Hugging Face layout, or a GGUF file that holds its vocabulary.",
            )
        try:
            backend = Backend.from_buffer(read_small(path))
        except Exception as error:  # the library raises a bare Exception
            raise FulgurError(f"{path} is not a tokenizer: {error}", hint="Download the file again.") from None
        _add_missing(backend, read_json(folder / "tokenizer_config.json"), path)
        return cls(backend, read_special_tokens(folder, backend.token_to_id))

    @classmethod
    def from_gguf_metadata(cls, metadata: dict[str, Any]) -> Tokenizer:
        """Build from the `tokenizer.*` keys of an already parsed GGUF header."""
        from fulgur.text.gguf_vocabulary import adds_bos, build, pieces_of

        try:
            backend = build(metadata)
        except FulgurError:
            raise
        except Exception as error:  # the library raises a bare Exception
            raise FulgurError(f"No tokenizer can be built from the GGUF's vocabulary: {str(error)[:200]}") from None
        tokens = pieces_of(metadata)
        special = special_tokens_of_gguf(metadata, tokens, backend.token_to_id)
        return cls(backend, special, add_bos=adds_bos(metadata) and special.bos_id is not None)

    @property
    def chat_template(self) -> str | None:
        """The default chat template's source."""
        return self.chat_templates.get("default")

    def encode(self, text: str, *, special: bool = True, continuation: bool = False) -> list[int]:
        """Tokens of `text`.

        special: control tokens written in the text (`<|im_end|>`, `<tool_call>`) become those tokens; with False they
        are plain characters, which is what text from outside must be.
        continuation: the text continues other text, so a SentencePiece vocabulary puts no space before it.
        """
        if not special and (self.control_pattern is None or self.control_pattern.search(text) is None):
            special = True  # nothing to parse, the plain path gives the same tokens
        return _encode(*self._variant(special, continuation), text)

    def continuation_encoder(self) -> Callable[[str], list[int]]:
        """`encode` of plain text that continues other text, as a function that does not hold this object."""
        return functools.partial(_encode, *self._variant(False, True))

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True, continuation: bool = False) -> str:
        """Text of `tokens`; bytes that are not UTF-8 become U+FFFD. `continuation` keeps the first token's space."""
        skipped = self.special_ids if skip_special else frozenset()
        data = b"".join([self.token_bytes(token) for token in tokens if token not in skipped])
        if self.drops_space and not continuation and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    @property
    def drops_space(self) -> bool:
        """Whether decoding takes one space off the start of a text (the encoder put it there)."""
        return self._rules.drop_space

    def token_id(self, piece: str) -> int | None:
        """The id of a token by the text it has in the vocabulary, or None."""
        number: int | None = self.backend.token_to_id(piece)
        return number

    def token_bytes(self, token: int) -> bytes:
        """The raw bytes of one token; empty for an id that the vocabulary leaves unused."""
        if not 0 <= token < self.vocab_size:
            return b""
        data = self._bytes[token]
        if data is None:
            piece = self.backend.id_to_token(token)
            data = b"" if piece is None else self._rules.bytes_of(piece, added=token in self._added)
            self._bytes[token] = data
        return data

    def _variant(self, special: bool, continuation: bool) -> tuple[Backend, dict[int, int]]:
        """The backend for these options; it shares the model and is created on first use."""
        key = (special, continuation)
        if key not in self._variants:
            self._variants[key] = _make_variant(self.backend, special=special, prefix=not continuation)
        return self._variants[key]


def _encode(backend: Backend, renumbered: dict[int, int], text: str) -> list[int]:
    ids: list[int]
    if len(text) < _LONG:
        ids = backend.encode(text, add_special_tokens=False).ids
    else:  # the same tokens; this call lets other threads run meanwhile, and wakes some of its own
        ids = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return [renumbered.get(token, token) for token in ids] if renumbered else ids


def _is_control(token: Any) -> bool:
    return bool(token.special) or _MARKER.fullmatch(token.content) is not None


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds any of these texts, the longest first; None for no texts."""
    ordered = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def tokenizer_file(folder: Path) -> Path:
    """A folder's tokenizer.json; a packed folder may name one that it shares with other models."""
    path = folder / "tokenizer.json"
    if path.is_file():
        return path
    packed = read_json(folder / "config.json").get("fulgur")
    shared = packed.get("tokenizer") if isinstance(packed, dict) else None
    return folder / shared if isinstance(shared, str) else path


def _state(component: Any) -> dict[str, Any] | None:
    """A component of the backend as its tokenizer.json section."""
    return None if component is None else json.loads(component.__getstate__())


def _make_variant(backend: Backend, *, special: bool, prefix: bool) -> tuple[Backend, dict[int, int]]:
    """A backend over the same model without control tokens and/or without the space before the text.

    Added tokens may get other ids in it; the second value maps them back.
    """
    from tokenizers import Tokenizer as Backend

    sections = {"normalizer": _state(backend.normalizer), "pre_tokenizer": _state(backend.pre_tokenizer)}
    if not prefix:
        sections = {name: _without_prefix(section) for name, section in sections.items()}
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    shell = Backend.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": empty, **sections}))
    shell.model = backend.model
    added = sorted(backend.get_added_tokens_decoder().items())
    kept = [token for _, token in added if special or not _is_control(token)]
    shell.add_tokens(kept)
    pairs: list[tuple[Any, Any]] = [(shell.token_to_id(one.content), backend.token_to_id(one.content)) for one in kept]
    return shell, {new: old for new, old in pairs if new != old}


def _without_prefix(section: dict[str, Any] | None) -> dict[str, Any] | None:
    """A normalizer or pre-tokenizer section that puts nothing before the text."""
    if section is None or section["type"] == "Prepend":
        return None
    if section["type"] == "Sequence":
        children = "normalizers" if "normalizers" in section else "pretokenizers"
        kept = [step for step in map(_without_prefix, section[children]) if step is not None]
        return {**section, children: kept} if kept else None
    if section["type"] == "Metaspace":
        return {**section, "prepend_scheme": "never"}
    if section["type"] == "ByteLevel":
        return {**section, "add_prefix_space": False}
    return section


def _add_missing(backend: Backend, tokenizer_config: dict[str, Any], path: Path) -> None:
    """Add tokens that only tokenizer_config.json has, and check that their numbers come out as it says."""
    from tokenizers import AddedToken

    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    listed = tokenizer_config.get("added_tokens_decoder", {})
    for number, entry in sorted((int(number), entry) for number, entry in listed.items()):
        if backend.token_to_id(entry["content"]) is not None:
            continue  # tokenizer.json has the word
        backend.add_tokens([AddedToken(entry["content"], **{flag: entry.get(flag, False) for flag in flags})])
        if (given := backend.token_to_id(entry["content"])) != number:
            raise FulgurError(
                f"{path.parent}: tokenizer_config.json numbers {entry['content']!r} {number}, "
                f"tokenizer.json makes it {given}.",
                hint="The two files are from different models; download both again.",
            )
