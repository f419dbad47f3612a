"""Splitters turn an answer into text, reasoning and tool calls while it streams. One file per format.

A splitter holds back only what may be the start of a marker. However the text is cut, the merged parts are the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from fulgur.errors import FulgurError
from fulgur.text.parts import Part
from fulgur.text.scan import THINK, THINK_END
from fulgur.text.special import known
from fulgur.text.split_harmony import MARKERS as HARMONY_MARKERS
from fulgur.text.split_harmony import HarmonySplitter
from fulgur.text.split_hermes import HermesSplitter
from fulgur.text.split_mistral import CALL as MISTRAL_CALL
from fulgur.text.split_mistral import MARKERS as MISTRAL_MARKERS
from fulgur.text.split_mistral import MistralSplitter
from fulgur.text.split_plain import PlainSplitter
from fulgur.text.split_qwen import QwenCoderSplitter
from fulgur.text.tokenizer import Tokenizer

FORMATS = ("plain", "hermes", "qwen3-coder", "harmony", "mistral")


class Splitter(Protocol):
    """One answer's splitter."""

    def feed(self, text: str) -> list[Part]:
        """More of the answer; returns what it completes."""

    def finish(self) -> list[Part]:
        """The answer has ended; returns what was held back."""


def splitter_for(format: str, *, tools: Sequence[dict[str, Any]] | None = None, thinking: bool = False) -> Splitter:
    """A splitter for one answer.

    tools: the tools offered; qwen3-coder, which writes values as bare text, takes their types from the schemas.
    thinking: the prompt ended inside `<think>` (see `opens_reasoning`); harmony names its channels itself.
    """
    if format == "plain":
        return PlainSplitter(thinking=thinking)
    if format == "hermes":
        return HermesSplitter(thinking=thinking)
    if format == "qwen3-coder":
        return QwenCoderSplitter(tools, thinking=thinking)
    if format == "harmony":
        return HarmonySplitter()
    if format == "mistral":
        return MistralSplitter(thinking=thinking)
    raise FulgurError(f"Unknown tool-call format {format!r}.", hint=f"Known formats: {', '.join(FORMATS)}.")


def detect_format(template_source: str) -> str:
    """The format a chat template asks its model for."""
    if "<|channel|>" in template_source:
        return "harmony"
    if "<function=" in template_source:
        return "qwen3-coder"
    if MISTRAL_CALL in template_source:
        return "mistral"
    return "hermes" if "<tool_call>" in template_source else "plain"


def call_opening(format: str, name: str, key: str = "arguments") -> str:
    """What a model writes before the JSON of a call. Qwen3-Coder's bare values cannot be held to a schema, so it is
    made to write JSON, which those models have learnt too."""
    if format == "harmony":
        return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
    if format == "mistral":
        return f"{MISTRAL_CALL}{name}[ARGS]"
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "{key}": '


def text_opening(format: str) -> str:
    """What a model writes before an answer in plain text."""
    return "<|channel|>final<|message|>" if format == "harmony" else ""


def reasoning_end(prompt: str) -> str:
    """What ends the reasoning that a rendered prompt leaves open."""
    if not opens_reasoning(prompt):
        return ""
    return MISTRAL_MARKERS[1] if prompt.rstrip().endswith(MISTRAL_MARKERS[0]) else f"\n{THINK_END}\n\n"


def opens_reasoning(prompt: str) -> bool:
    """Whether a rendered prompt ends with an open `<think>`, so that the answer starts with reasoning."""
    return prompt.rstrip().endswith((THINK, MISTRAL_MARKERS[0]))


def marker_tokens(format: str, tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens of the format's markers: a StreamDecoder must `keep` them though some vocabularies call them special."""
    tool_markers = () if format == "plain" else ("<tool_call>", "</tool_call>")
    own = {"harmony": HARMONY_MARKERS, "mistral": MISTRAL_MARKERS}
    markers = own.get(format, (THINK, THINK_END, *tool_markers))
    return frozenset(known(tokenizer.token_id, markers))
