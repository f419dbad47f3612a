"""Which tokens mean something: end of answer, beginning of text, and the chat template, as a model's files say it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fulgur.errors import FulgurError
from fulgur.small_files import read_small

TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

# Used only when no file names an end token.
_USUAL_ENDS = ("<|eos|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>", "<eos>")

TokenId = Callable[[str], int | None]


@dataclass(frozen=True)
class SpecialTokens:
    """`names` are the template's variables (`bos_token` and so on); `templates` are chat templates by name."""

    names: dict[str, str] = field(default_factory=dict)
    eos_ids: frozenset[int] = frozenset()
    bos_id: int | None = None
    templates: dict[str, str] = field(default_factory=dict)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, `{}` if the file is not there."""
    try:
        value = json.loads(read_small(path))
    except FileNotFoundError:
        return {}
    except (ValueError, OSError, RecursionError) as error:
        raise FulgurError(f"{path} cannot be read: {error}", hint="Download or export the file again.") from None
    if not isinstance(value, dict):
        raise FulgurError(f"{path} holds {type(value).__name__}, not a JSON object.")
    return value


def read_special_tokens(folder: Path, token_id: TokenId) -> SpecialTokens:
    """Gather what tokenizer_config.json, special_tokens_map.json, generation_config.json and config.json say."""
    tokenizer_config = read_json(folder / "tokenizer_config.json")
    config = read_json(folder / "config.json")
    generation = read_json(folder / "generation_config.json")
    named = {**read_json(folder / "special_tokens_map.json"), **tokenizer_config}

    names = {name: text for name in TOKEN_NAMES if (text := _content(named.get(name))) is not None}
    model = {**config.get("text_config", {}), **config}

    ends = {*_ids(generation.get("eos_token_id")), *_ids(model.get("eos_token_id"))}
    ends.update(known(token_id, [names[name] for name in ("eos_token",) if name in names]))
    if not ends:
        ends.update(known(token_id, _USUAL_ENDS))

    # `"bos_token": null` says that there is none, whatever number config.json carries.
    bos = token_id(names["bos_token"]) if "bos_token" in names else None
    if "bos_token" not in named:
        bos = next(iter([*_ids(generation.get("bos_token_id")), *_ids(model.get("bos_token_id"))]), None)
    return SpecialTokens(names, frozenset(ends), bos, _templates(folder, tokenizer_config))


def special_tokens_of_gguf(metadata: dict[str, Any], tokens: list[str], token_id: TokenId) -> SpecialTokens:
    """The same from a GGUF's metadata."""
    prefix = "tokenizer.ggml."
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: metadata.get(f"{prefix}{key}_token_id") for name, key in keys.items()}
    names = {name: tokens[number] for name, number in ids.items() if number is not None and number < len(tokens)}
    ends = [metadata.get(f"{prefix}{key}_token_id") for key in ("eos", "eot", "eom")]
    eos_ids = frozenset(int(number) for number in ends if number is not None)
    templates = {
        key.removeprefix("tokenizer.chat_template").removeprefix(".") or "default": source
        for key, source in metadata.items()
        if key == "tokenizer.chat_template" or key.startswith("tokenizer.chat_template.")
    }
    bos = ids["bos_token"]
    return SpecialTokens(
        names, eos_ids or frozenset(known(token_id, _USUAL_ENDS)), None if bos is None else int(bos), templates
    )


def known(token_id: TokenId, pieces: Iterable[str]) -> list[int]:
    """The ids of those pieces that the vocabulary has."""
    return [number for piece in pieces if (number := token_id(piece)) is not None]


def _content(token: Any) -> str | None:
    """A token is written as its text or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(number) for number in (value if isinstance(value, list) else [value])]


def _templates(folder: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name: files win over tokenizer_config.json, as in transformers."""
    found: dict[str, str] = {}
    written = tokenizer_config.get("chat_template")
    if isinstance(written, str):
        found["default"] = written
    elif isinstance(written, list):
        found.update({entry["name"]: entry["template"] for entry in written})
    main = folder / "chat_template.jinja"
    if main.is_file():
        found["default"] = read_small(main).decode()
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = read_small(path).decode()
    return found
