"""Markdown files that add something by their name: commands, roles. A person's own, and those of a trusted project.

A file may begin with a head of `key: value` lines between two lines of `---`; the rest is its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fulgur.config.settings import Settings
from fulgur.errors import UsageError
from fulgur.workspace.beneath import read_inside, shown

_HEAD = re.compile(r"\A---[ \t]*\n(.*?)\n---[ \t]*(?:\n|\Z)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,40}")
_MOST_FILES, _MOST_BYTES = 200, 64 * 1024


@dataclass(frozen=True)
class NamedText:
    """One file: `name` is that of the file without `.md`."""

    name: str
    path: Path
    head: dict[str, str]
    text: str


def named_texts(settings: Settings, folder: str) -> list[NamedText]:
    """`~/.fulgur/FOLDER/*.md`, then `.fulgur/FOLDER/*.md` of a trusted project, which wins where names are equal.

    UsageError when a file is wrong.
    """
    roots = [settings.home]
    if settings.trusted:
        roots.append(settings.project / ".fulgur")
    found: dict[str, NamedText] = {}
    for root in roots:
        for path in sorted((root / folder).glob("*.md"))[:_MOST_FILES]:
            data = read_inside(root if root == settings.home else settings.project, path, _MOST_BYTES)
            if data is not None and _NAME.fullmatch(path.stem):
                found[path.stem] = parse(path, data.decode("utf-8", errors="replace"))
    return list(found.values())


def parse(path: Path, text: str) -> NamedText:
    """Parse one file; UsageError when its head has no end or a line that is not `key: value`."""
    head: dict[str, str] = {}
    if match := _HEAD.match(text):
        for line in filter(str.strip, match.group(1).splitlines()):
            key, colon, value = line.partition(":")
            if not colon or not key.strip():
                raise UsageError(f"{shown(str(path))}: {line.strip()!r} in its header is not a `key: value` line")
            head[key.strip().lower()] = value.strip().strip("\"'")
        text = text[match.end() :]
    elif re.match(r"---[ \t]*\n", text):
        raise UsageError(f"{shown(str(path))}: its header is not closed", hint="End it with a line of three dashes.")
    return NamedText(path.stem, path, head, text.strip())


def filled(text: str, arguments: str) -> str:
    """A command's text with `$ARGUMENTS` and `$1` … `$9` put in; arguments that it has no place for come at its end."""
    words = arguments.split()
    result = re.sub(
        r"\$(ARGUMENTS\b|[1-9])",
        lambda m: arguments if m[1] == "ARGUMENTS" else (words[int(m[1]) - 1] if int(m[1]) <= len(words) else ""),
        text,
    )
    return f"{text}\n\n{arguments}" if arguments and result == text else result
