"""A question put to a model that only rewrites: the places it is about, and what could answer it."""

from __future__ import annotations

import re
from pathlib import Path

from fulgur.edit.model import ABILITIES
from fulgur.workspace.ask import answer
from fulgur.workspace.symbols import SymbolIndex

_ASKS = re.compile(
    r"\s*(?:what|what's|why|how|where|who|whose|which|when|does|do|is|are|was|were|did|has|have|explain|describe|"
    r"summari[sz]e|tell me|show me)\b",
    re.IGNORECASE,
)


def is_question(text: str) -> bool:
    """Plainly something to be told, not something to be done ("can you rename x to y?" asks for an edit)."""
    return _ASKS.match(text) is not None


def places_of(question: str, workspace: Path, home: Path, model: str) -> str:
    """What the symbol index knows of it, and what to do for an answer in words."""
    index = SymbolIndex(workspace, home)
    index.refresh()
    found = answer(question, index, 5)
    lines = [f"{place.path}:{place.line}  {place.kind}  {place.what}" for place in found]
    lines += ["" if found else "Nothing in this folder fits the question.", f"{model} only edits; it can {ABILITIES}."]
    lines.append("For answers in words choose a model that chats: `/model`, or `model_provider` in the configuration.")
    return "\n".join(lines)
