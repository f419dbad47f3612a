"""What was said and done, as the model sees it: one append-only list of Responses items.

A compaction does not rewrite the list: it marks a new start, and what lies before that is no longer sent.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

Item = dict[str, Any]

CHARACTERS_PER_TOKEN = 3.5
_IMAGE_TOKENS = 1500  # what a screenshot costs with most models
STOPPED_OUTPUT = "[stopped by the person before it ended]"
# Beginnings of messages that we send in the person's name; compaction does not take them for the person's own.
CHECKED = "A check of your changes found this."
IN_FORM = "Give the result as JSON that follows the schema, and nothing else."
NOT_IN_FORM = f"That was not valid JSON. {IN_FORM}"
RECORD = "The earlier conversation was replaced by this record of it."
HANDED_OVER = "You take over from another model"
HOOK = "[Told by a hook, not by the person]"
_OURS = (CHECKED, IN_FORM, NOT_IN_FORM, RECORD, HANDED_OVER, HOOK)


class History:
    """The items of a session."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._start = 0
        self._summary: list[Item] = []

    def add(self, items: list[Item]) -> None:
        """Append items."""
        self._items.extend(items)

    def begin_anew(self, summary: list[Item]) -> None:
        """From now on, show the model `summary` instead of everything so far."""
        self._summary = summary
        self._start = len(self._items)

    def visible(self) -> list[Item]:
        """The items that the model is sent."""
        return [*self._summary, *self._items[self._start :]]

    def everything(self) -> list[Item]:
        """All items ever added."""
        return list(self._items)

    def open_calls(self) -> list[Item]:
        """Tool calls without an output, which no model accepts."""
        answered = {item.get("call_id") for item in self._items if item.get("type") == "function_call_output"}
        return [i for i in self._items if i.get("type") == "function_call" and i.get("call_id") not in answered]


def message(role: str, text: str) -> Item:
    """A message item."""
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def is_said(item: Item) -> bool:
    """Whether a person wrote this message."""
    return item.get("type") == "message" and item.get("role") == "user" and not item_text(item).startswith(_OURS)


def call_output(call_id: str, output: str) -> Item:
    """An item with the output of a tool call."""
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def item_text(item: Item) -> str:
    """The plain text of an item."""
    content = item.get("content")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict)]
        return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)
    if isinstance(content, str):
        return content
    return str(item.get("output") or item.get("arguments") or "")


def estimate_tokens(items: list[Item]) -> int:
    """Estimate cautiously, to decide on compaction before the server refuses."""
    characters = sum(len(item_text(item)) + len(str(item.get("name", ""))) + 12 for item in items)
    return int(characters / CHARACTERS_PER_TOKEN) + _IMAGE_TOKENS * sum(map(_images, items))


def _images(item: Item) -> int:
    content = item.get("content")
    return sum(part.get("type") == "input_image" for part in content) if isinstance(content, list) else 0


_PATCHED = re.compile(r"^\*\*\* (?:Update|Add|Delete) File: (.+)$", re.MULTILINE)
_LONGEST_VALUE = 200


def call_title(name: str, arguments: str) -> str:
    """Format a stored call in one line: `$ pytest -q`, `read app.py`, `apply_patch app.py, test_app.py`."""
    try:
        given = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return f"{name} {arguments[:_LONGEST_VALUE]}"
    if isinstance(command := given.get("command"), str):
        return f"$ {command}"
    values = [str(value) for value in given.values() if isinstance(value, str | int | float)]
    if isinstance(patch := given.get("patch"), str):
        values = _PATCHED.findall(patch)
    return " ".join([name, ", ".join(value.partition("\n")[0][:_LONGEST_VALUE] for value in values)]).rstrip()
