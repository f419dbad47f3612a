"""Features and games: to add to a package, or to write in an empty folder. One file each in `wanted/`.

about, prompt   a description, and the agent's prompt
package         the package to extend; left out: an empty folder
edit            [[edit]] file, old, new: how the scripted model solves it
solution        or whole files
hidden          its tests, which only the verdict sees
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec

from fulgur.errors import FulgurError
from fulgur.eval.agent.prove import module_path
from fulgur.eval.agent.tasks import Task
from fulgur.eval.projects import Project, environment

FOLDER = Path(__file__).with_name("wanted")


class Edit(msgspec.Struct, forbid_unknown_fields=True):
    """A text in a file and its replacement."""

    file: str
    old: str
    new: str


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """One file of `wanted/`."""

    about: str
    prompt: str
    hidden: dict[str, str]
    package: str = ""
    edit: list[Edit] = []
    solution: dict[str, str] = {}


def wanted(projects: dict[str, Project], passing: dict[str, frozenset[str]], place: Path) -> list[Task]:
    """All these tasks, in order of name. `place`: where empty folders can be created."""
    found = []
    for path in sorted(FOLDER.glob("*.toml")):
        data = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Wanted)
        project = projects[data.package] if data.package else None
        origin = project.folder if project is not None else _empty(place / path.stem)
        expected = {f"{file}::{name}" for file, text in data.hidden.items() for name in _tests(text)}
        tests = tuple(data.hidden)
        if project is not None:
            expected |= passing[data.package]
            tests = (project.package.tests, *tests)
        found.append(
            Task(
                path.stem, "feature" if project is not None else "game", data.about, data.prompt.strip(), origin, tests,
                module_path(project) if project is not None else ".", frozenset(expected),
                solution=_solution(data, origin), hidden=data.hidden,
            )
        )  # fmt: skip
    return found


def _tests(text: str) -> list[str]:
    return re.findall(r"^def (test_\w+)", text, re.MULTILINE)


def _empty(folder: Path) -> Path:
    """A folder that contains only a Python environment."""
    folder.mkdir(parents=True)
    (folder / ".gitignore").write_text(".venv\n", encoding="utf-8")
    (folder / ".venv").symlink_to(environment())
    return folder


def _solution(data: Wanted, origin: Path) -> dict[str, str]:
    files = dict(data.solution)
    for edit in data.edit:
        text = files.get(edit.file) or (origin / edit.file).read_text(encoding="utf-8")
        if text.count(edit.old) != 1:
            raise FulgurError(f"{edit.file}: a text to replace occurs {text.count(edit.old)} times")
        files[edit.file] = text.replace(edit.old, edit.new)
    return files
