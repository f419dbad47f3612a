"""A session as Markdown, to read or to share."""

from __future__ import annotations

from collections.abc import Iterable

from fulgur.protocol.session import TranscriptEntry

_HEADS = {"user": "## Prompt", "steer": "### Redirected", "assistant": ""}


def to_markdown(entries: Iterable[TranscriptEntry], title: str) -> str:
    """Format prompts as headings, answers as they were written, calls and diffs as fenced blocks."""
    parts = [f"# {title}"]
    for entry in entries:
        text = entry.text.strip("\n")
        if not text:
            continue
        match entry.kind:
            case "user" | "steer":
                parts.append(f"{_HEADS[entry.kind]}\n\n{text}")
            case "assistant":
                parts.append(text)
            case "diff":
                parts.append(_fenced(text, "diff"))
            case "tool":
                parts.append(_fenced(text, ""))
            case _:
                parts.append(f"*{text}*" if "\n" not in text else text)
    return "\n\n".join(parts) + "\n"


def _fenced(text: str, language: str) -> str:
    """Use a fence longer than any inside."""
    longest = max((len(run) for run in text.replace("\n", " ").split() if set(run) == {"`"}), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
