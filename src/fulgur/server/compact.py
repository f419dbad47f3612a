"""Compaction: the model itself summarises a long conversation."""

from __future__ import annotations

from dataclasses import replace

from fulgur.backends.base import Backend, Turn
from fulgur.backends.opaque import seal
from fulgur.protocol.errors import ApiError
from fulgur.protocol.ids import COMPACTION, MESSAGE, new_id
from fulgur.protocol.items import Compaction, Item, as_dict, user_message
from fulgur.server.doors.answer import collect
from fulgur.text.parts import Usage

PROMPT = (
    "Write down what is needed to go on with this work without the conversation above: the task and its limits, "
    "what was decided and why, the files and names that matter, what was done with which result, "
    "and what is left to do. Be complete and brief. Answer with the notes only."
)


def kept_message(item: Item) -> Item:
    """A user's message as an item of an output: with an id, a status, and its content in parts."""
    content = item["content"]
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    named = {"id": item.get("id") or new_id(MESSAGE), "status": "completed", "role": item["role"], "content": parts}
    return {"type": "message", **named}


async def compact(backend: Backend, turn: Turn) -> tuple[Usage, Item]:
    """A compaction item that stands for the whole conversation of the turn."""
    asked = turn.conversation.extend([user_message(PROMPT)])
    answer = await collect(backend.generate(replace(turn, conversation=asked, tool_choice="none", format=None)))
    summary = answer.text.strip()
    if not summary:
        raise ApiError(500, "compaction_failed", "The model wrote no summary; the conversation is unchanged.")
    return answer.finish.usage, as_dict(Compaction(new_id(COMPACTION), seal({"summary": summary})))
