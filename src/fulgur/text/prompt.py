"""Encodes messages, keeping what people and tools wrote apart from the template's own markers.

A file or a tool's output may spell `<|im_end|>`. In the rendered prompt that text must stay text; otherwise whoever
wrote the file could speak as the system. Such places are fenced before the template runs and encoded as plain
characters.
"""

from __future__ import annotations

import re
from typing import Any

from fulgur.text.template import ChatTemplate
from fulgur.text.tokenizer import Tokenizer

# Private-use characters: no template and no vocabulary gives them a meaning.
_OPEN, _CLOSE = "\U000ffff0", "\U000ffff1"
_FENCED = re.compile(f"{_OPEN}(.*?){_CLOSE}", re.DOTALL)


def encode_chat(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: list[dict[str, Any]],
    *,
    tools: list[dict[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    **extra: Any,
) -> list[int]:
    """The prompt's tokens. Only the template writes control tokens; an assistant's own markers, as `<think>`, stay."""
    fenced = fence(messages, tokenizer)
    text = template.render(fenced, tools=tools, add_generation_prompt=add_generation_prompt, **extra)
    return encode_fenced(tokenizer, text)


def fence(messages: list[dict[str, Any]], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The messages with every control token spelled in them marked as plain text, for `encode_fenced`."""
    return [_fence(message, tokenizer) for message in messages]


def encode_fenced(tokenizer: Tokenizer, text: str, *, continuation: bool = False) -> list[int]:
    """Encode a rendered prompt (or, with `continuation`, the rest of one); what is fenced is plain text."""
    tokens: list[int] = []
    for place, piece in enumerate(_FENCED.split(text)):
        if piece:
            tokens += tokenizer.encode(piece, special=place % 2 == 0, continuation=continuation or place > 0)
    return tokens


def _fence(message: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    own = message.get("role") == "assistant"
    pattern = tokenizer.special_pattern if own else tokenizer.control_pattern
    if pattern is None:
        return message
    return {key: value if key == "role" else _fence_value(value, pattern) for key, value in message.items()}


def _fence_value(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        bare = value.replace(_OPEN, "").replace(_CLOSE, "")
        return pattern.sub(lambda match: f"{_OPEN}{match[0]}{_CLOSE}", bare)
    if isinstance(value, list):
        return [_fence_value(item, pattern) for item in value]
    if isinstance(value, dict):
        return {key: _fence_value(item, pattern) for key, item in value.items()}
    return value
