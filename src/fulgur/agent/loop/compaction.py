"""Compaction: when the context is full, a summary replaces the conversation, while rules and open work stay verbatim.

The model writes the summary. The person's own messages are kept verbatim beside it (the latest first, within a limit),
and so is the list of changed files. If the model cannot summarise, what is known for certain is used alone: the lack of
a summary never stops it.
"""

from __future__ import annotations

from collections.abc import Sequence

from fulgur.agent.session.history import (
    CHARACTERS_PER_TOKEN,
    RECORD,
    Item,
    estimate_tokens,
    is_said,
    item_text,
    message,
)
from fulgur.protocol.agent import PlanStep

REQUEST = """Summarise our work so far, for yourself: everything before this message will be gone. Write only:
1. The task and every rule or preference the person gave, in their words.
2. Decisions made and why; facts found out about the code (names, paths, commands that work).
3. What was changed, file by file.
4. What is still open, and the very next step.
Be exact with names and paths. No code longer than a few lines."""

_KEPT_SHARE = 0.2  # of the context, for the person's own messages
_OUTPUT_KEPT = 400  # characters of a tool output that is shortened to make room


def shortened(items: Sequence[Item], tokens: int) -> list[Item]:
    """Truncate tool outputs, the oldest first, until the items fit.

    Then drop the oldest items, never leaving an output without its call.
    """
    result = [dict(item) for item in items]
    for item in result:
        if estimate_tokens(result) <= tokens:
            return result
        if item.get("type") == "function_call_output" and len(str(item["output"])) > _OUTPUT_KEPT:
            item["output"] = f"{str(item['output'])[:_OUTPUT_KEPT]}\n[shortened]"
    while len(result) > 1 and estimate_tokens(result) > tokens:
        result.pop(0)
        while result and result[0].get("type") == "function_call_output":
            result.pop(0)  # an output must not remain without its call
    return result


def beginning(
    items: Sequence[Item], summary: str, changed: Sequence[str], plan: Sequence[PlanStep], context: int
) -> list[Item]:
    """Build what the model sees instead of `items`."""
    parts = [RECORD]
    if kept := _words(items, int(context * _KEPT_SHARE * CHARACTERS_PER_TOKEN)):
        parts.append("The person said, word for word:\n" + "\n".join(f"- {text}" for text in kept))
    if changed:
        parts.append("Files changed so far: " + ", ".join(changed))
    if any(step.status != "completed" for step in plan):
        parts.append("Your plan:\n" + "\n".join(f"- [{step.status}] {step.step}" for step in plan))
    parts.append(f"Summary:\n{summary}" if summary else _bare(items))
    return [message("user", "\n\n".join(parts))]


def _words(items: Sequence[Item], room: int) -> list[str]:
    """The person's messages, oldest first; if they do not all fit, keep the latest and say how many are missing."""
    said = [item_text(item) for item in items if is_said(item)]
    kept: list[str] = []
    while said and room > 0:
        text = said.pop()
        if len(text) > room:
            half = room // 2
            text = f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
        room -= len(text)
        kept.append(text)
    if said:
        kept.append(f"[{len(said)} earlier messages do not fit here]")
    return kept[::-1]


def _bare(items: Sequence[Item]) -> str:
    """Stand in for a missing summary: the last messages and calls, as they were."""
    said = [item_text(item) for item in items if item.get("type") == "message" and item.get("role") == "assistant"]
    done = [
        f"{item['name']} {str(item.get('arguments', ''))[:160]}"
        for item in items
        if item.get("type") == "function_call"
    ]
    lines = ["No summary could be written. The last messages and calls:"]
    lines += [text[:1000] for text in said[-3:]]
    lines += done[-12:]
    return "\n".join(lines)
