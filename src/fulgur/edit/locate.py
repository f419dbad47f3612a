"""Find what a prompt wants edited: one file and, where the user names it, one part of it.

Tried in this order: `@file`, `@file:symbol` or `@file:10-20`; a path that exists; a name that is defined once in the
workspace; the file edited last in this session; the only file that contains the names written like code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fulgur.edit.plain import core
from fulgur.edit.plain.no_edit import bare, no_edit
from fulgur.edit.region import Target, parse_target
from fulgur.edit.verbs import without_verb
from fulgur.errors import FulgurError, UsageError
from fulgur.workspace.ignore import walk
from fulgur.workspace.symbols import SymbolIndex
from fulgur.workspace.words import code_words

_MENTION = re.compile(r"(?<!\S)@([^\s,;]+)")
_PATH = re.compile(r"(?<![\w@/])((?:[\w.-]+/)*[\w-]+\.\w+(?::[\w.-]+)?)")
_BEFORE_PATH = re.compile(r"(?:^|\s)(?:in|inside|of|from|at|file)\s*$", re.IGNORECASE)
_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


class NoPlaceError(FulgurError):
    """A prompt names no place to edit."""


@dataclass(frozen=True)
class Located:
    """What a prompt means: the target, the instruction without the mention, and how it was found."""

    target: Target
    instruction: str
    how: str


def find_place(text: str, workspace: Path, home: Path, recent: Sequence[str] = ()) -> Located:
    """The target of a prompt; raises a FulgurError that says how to name it when that is unclear."""
    if match := _MENTION.search(text):
        target = _target(match[1].rstrip(".,;:"), workspace)
        rest = " ".join((text[: match.start()] + text[match.end() :]).split())
        if not target.symbol and not target.lines and bare(core(rest)):
            rest = f"{rest} {match[1]}"  # the file is what the verb is about
        return Located(target, rest or text, f"named: {match[1]}")
    for match in _PATH.finditer(text):
        if (workspace / match[1].split(":")[0]).is_file():
            return Located(_target(match[1], workspace), _without(text, match), f"named: {match[1]}")
    if (why := no_edit(core(text))) is not None:
        raise FulgurError(why)
    index = SymbolIndex(workspace, home)
    index.refresh()
    said, text = text, without_verb(text)
    plain = [word for word in _NAME.findall(text) if len(word) > 3]
    # Those that look most like code first.
    names = list(dict.fromkeys([*code_words(text), *plain[1:], *plain[:1]]))
    for name in names:
        defined = [(path, symbol) for path, symbol in index.named(name) if symbol.kind != "constant"] or index.named(
            name
        )
        if len(defined) == 1:
            path, symbol = defined[0]
            target = Target(workspace / path, symbol.qualified)
            return Located(target, said, f"{symbol.qualified} is defined in {path}:{symbol.line}")
        if len(defined) > 1:
            places = ", ".join(f"{path}:{symbol.line}" for path, symbol in defined[:6])
            raise FulgurError(
                f"{name} is defined in {len(defined)} places: {places}", hint="Name one with @file:symbol."
            )
    for path in recent:
        if (workspace / path).is_file():
            return Located(Target(workspace / path), said, f"the file edited last: {path}")
    using = _files_with(workspace, [name for name in names if "_" in name or not name.islower()])
    if len(using) == 1:
        return Located(Target(using[0]), said, f"the only file that has these names: {using[0].relative_to(workspace)}")
    raise NoPlaceError(
        "which file, and which part of it?", hint="Write @path/to/file.py, @file.py:function or @file.py:10-30."
    )


def _without(text: str, path: re.Match[str]) -> str:
    """The instruction without a path at its beginning or end ("in shop.py rename …"), which the model need not see.

    A path in the middle may be part of the request, and in "delete shop.py" it is the object; both stay."""
    if ":" not in path[1] and bare(core(text[: path.start()])):
        return text
    before = _BEFORE_PATH.sub("", text[: path.start()]).strip()
    after = text[path.end() :].lstrip(" ,:").rstrip(" .!")
    return (before or after or text) if not (before and after) else text


def _target(text: str, workspace: Path) -> Target:
    target = parse_target(text, workspace)
    if not target.path.is_file():
        raise UsageError(f"there is no file {text.split(':')[0]} in {workspace}")
    return target


def _files_with(workspace: Path, names: Sequence[str]) -> list[Path]:
    if not names:
        return []
    pattern = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in names))
    found = []
    for entry in walk(workspace, limit=5000):
        path = Path(entry.path)
        if entry.stat(follow_symlinks=False).st_size > (512 << 10):
            continue
        data = path.read_bytes()
        if b"\0" not in data[:4096] and pattern.search(data.decode("utf-8", errors="replace")):
            found.append(path)
            if len(found) > 1:
                break
    return found
