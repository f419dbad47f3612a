"""Answers a question put to an edit-only model: the places it is about, and which models could answer it."""

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
_GREETS = re.compile(
    r"\s*(?:hi|hello|hey|help|thanks|thank you|good (?:morning|day|evening))\b[\s!.,?]*", re.IGNORECASE
)
_OF_ITSELF = re.compile(r"\b(?:you|your|yourself|i|fulgur)\b", re.IGNORECASE)


def is_question(text: str) -> bool:
    """Whether the text plainly asks for information ("can you rename x to y?" asks for an edit)."""
    greeting = _GREETS.match(text)
    rest = text[greeting.end() :] if greeting else text
    return not rest.strip() or _ASKS.match(rest) is not None


def told_of(question: str, workspace: Path, home: Path, model: str) -> str:
    """Say what the symbol index knows about the question, and how to get an answer in words. A greeting, or a question
    about the model itself, gets only what the model can do."""
    lines: list[str] = []
    if not _GREETS.match(question) and not _OF_ITSELF.search(question):
        index = SymbolIndex(workspace, home)
        index.refresh()
        found = answer(question, index, 5)
        lines += [f"{place.path}:{place.line}  {place.kind}  {place.what}" for place in found]
        lines += [] if found else ["Nothing in this folder fits the question."]
        lines.append("")
    lines.append(f"{model} only edits: name a place and say what to change there. It can {ABILITIES}.")
    lines.append("For answers in words choose a model that chats, with `/model` or `-m`.")
    return "\n".join(lines)
