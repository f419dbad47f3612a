"""Skills: folders with a SKILL.md that says how something is done. The model is told their names and what they are
for, and reads one when it needs it.

A person's own are in `~/.fulgur/skills`; those of a trusted project in `.fulgur/skills`, `.agents/skills` or
`.claude/skills`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from fulgur.config.settings import Settings
from fulgur.errors import FulgurError
from fulgur.workspace.beneath import read_inside, shown

_PLACES = (".claude/skills", ".agents/skills", ".fulgur/skills")
_FILE = "SKILL.md"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_HEAD = re.compile(r"\A---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_MOST_SKILLS, _MOST_BYTES, _MOST_FILES = 100, 64 * 1024, 100
_MOST_DESCRIPTION = 500


@dataclass(frozen=True)
class Skill:
    """One skill. `root` is the folder that none of its files may lead out of."""

    name: str
    description: str
    folder: Path
    root: Path

    def read(self, file: str = "") -> str:
        """The text of one of its files, by default SKILL.md; FulgurError when there is none."""
        data = read_inside(self.root, self.folder / (file or _FILE), _MOST_BYTES)
        inside = os.path.normpath(file or _FILE)
        if data is None or os.path.isabs(file) or inside.startswith(".."):
            have = ", ".join(self.files()) or "none"
            raise FulgurError(f"the skill {self.name} has no file {shown(file)}", hint=f"It has: {have}")
        text = data.decode("utf-8", errors="replace")
        return text if file else _split(text)[1]

    def files(self) -> list[str]:
        """Its other files, relative to its folder."""
        found = []
        for place, folders, names in os.walk(self.folder):
            folders.sort()
            found += [os.path.relpath(os.path.join(place, name), self.folder) for name in sorted(names)]
            if len(found) > _MOST_FILES:
                break
        return [shown(name) for name in found if name != _FILE][:_MOST_FILES]


def find_skills(settings: Settings) -> tuple[list[Skill], list[str]]:
    """The skills sorted by name, and what is wrong with others. A project's skill replaces one of the same name at
    home."""
    places = [settings.home / "skills"]
    if settings.trusted:
        places += [settings.project / place for place in _PLACES]
    found: dict[str, Skill] = {}
    wrong: list[str] = []
    for place in places:
        for path in sorted(place.glob(f"*/{_FILE}"))[:_MOST_SKILLS]:
            # A person's own skill may link to anywhere, a project's only to another place in the project.
            folder, root = path.parent, settings.project
            if place == places[0]:
                folder = root = path.parent.resolve()
            data = read_inside(root, folder / _FILE, _MOST_BYTES)
            if data is None:
                wrong.append(f"the skill {shown(str(path))} is ignored: it points outside the project")
                continue
            head, _ = _split(data.decode("utf-8", errors="replace"))
            name, description = head.get("name") or path.parent.name, head.get("description", "")[:_MOST_DESCRIPTION]
            if not _NAME.fullmatch(name) or not description:
                wrong.append(f"the skill {shown(str(path))} is ignored: its header needs a `name` and a `description`")
                continue
            found[name] = Skill(name, description, folder, root)
    return sorted(found.values(), key=lambda skill: skill.name), wrong


def _split(text: str) -> tuple[dict[str, str], str]:
    """The head's values, each as one line, and the text after it. Of YAML, only plain values and those continued on
    indented lines are read."""
    match = _HEAD.match(text)
    if match is None:
        return {}, text.strip()
    head: dict[str, str] = {}
    key = ""
    for line in match[1].splitlines():
        if line[:1] in (" ", "\t"):
            head[key] = f"{head.get(key, '')} {line.strip()}"
            continue
        key, _, value = line.partition(":")
        key, value = key.strip().lower(), value.strip()
        head[key] = "" if value in (">", ">-", "|", "|-") else value
    cleaned = {name: " ".join(value.split()).strip("\"'") for name, value in head.items()}
    return cleaned, text[match.end() :].strip()
