"""Names inside f-strings have exact positions, so they are renamed with the rest."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fulgur.edit.project.coroutine import make_async_everywhere
from fulgur.edit.project.members import rename_member_everywhere
from fulgur.edit.project.move import move_everywhere
from fulgur.edit.project.rename import rename_everywhere
from fulgur.edit.project.signature import change_signature
from fulgur.edit.refactor.source import Source
from fulgur.text.edit_format import Call

FILES = {
    "jobs.py": (
        "class Job:\n    def __init__(self, title):\n        self.jobname = title\n\n"
        "    def kind(self):\n        return 'k'\n\n\ndef load(path, depth=0):\n    return path\n"
    ),
    "uses.py": (
        "import jobs\nfrom jobs import Job, load\n\n\ndef use(job: Job):\n"
        "    print(f\"{job.jobname}: {job.kind()}\")\n"
        "    print(f\"{load('x', depth=1)} and {jobs.load('y')!r:>{10}}\")\n"
        "    return f'{job.kind()[0]}' f\"{load(f'{job.jobname}')}\"\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        'f"{name}"', "f'{name!r}'", 'f"{name:>{width}}"', 'f"{{name}} {name}"', 'f"a" "b {name}" f"{name}"',
        'f"""\n{name}\n  {width:{name}}"""', "rf'\\d{name}'", 'f"{name=}"', 'f"{name == 1}"', 'f"{name != width!r}"',
        "f\"{d['a']} {name}\"", "f'{f\"{name}\"}'", 'f"é {name}"', 'f"{d[name]:%Y-%m}"', "(f'a{name}'\n f'b{width}')",
        'f"\\N{BULLET} {name}"', 'f"{ {name} }"', "f'{(lambda: name)()}'", 'f"{name.real + width.imag}"',
    ],
)  # fmt: skip
def test_every_name_stands_where_its_position_says(text: str) -> None:
    source = Source(f"def f(name, width, d):\n    return {text}\n")
    found = source.inner[ast.Name]
    assert found and not source.hidden
    assert all(source.segment(node) == node.id for node in found)  # type: ignore[attr-defined]
    assert all(source.segment(node).endswith(node.attr) for node in source.inner[ast.Attribute])  # type: ignore[attr-defined]


def after(result: object, name: str) -> str:
    return {path.name: text for path, (_, text) in result.files.items()}[name]  # type: ignore[attr-defined]


def test_members_names_modules_and_keywords_are_renamed_in_f_strings(project: Path) -> None:
    uses = after(rename_member_everywhere(project, project / "jobs.py", "Job", "jobname", "title", None), "uses.py")
    assert '{job.title}: {job.kind()}"' in uses and "load(f'{job.title}')" in uses
    uses = after(rename_everywhere(project, project / "jobs.py", "load", "read"), "uses.py")
    assert "{read('x', depth=1)} and {jobs.read('y')!r:>{10}}" in uses
    call = Call("rename_parameter", ("load", "depth", "level"))
    assert "load('x', level=1)" in after(change_signature(project, project / "jobs.py", call), "uses.py")
    call = Call("remove_parameter", ("load", "depth"))
    assert "{load('x')} and" in after(change_signature(project, project / "jobs.py", call), "uses.py")


def test_a_module_keeps_a_moved_name_that_an_f_string_takes_from_it(project: Path) -> None:
    result = move_everywhere(project, project / "jobs.py", "load", "other.py")
    assert "from other import load" in after(result, "jobs.py")
    assert [(place.path.name, place.line) for place in result.unsure] == [("uses.py", 7)]


def test_calls_in_f_strings_are_awaited(project: Path) -> None:
    uses = after(make_async_everywhere(project, project / "jobs.py", "load", None), "uses.py")
    assert "{(await load('x', depth=1))} and {(await jobs.load('y'))!r:>{10}}" in uses
    ast.parse(uses)
