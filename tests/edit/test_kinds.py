"""Members are renamed on objects whose class follows from the project's own code, and on no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fulgur.edit.project.members import rename_member_everywhere
from fulgur.edit.refactor.errors import RefactorError

FILES = {
    "shop/__init__.py": "from .jobs import Job, every, make\n",
    "shop/jobs.py": """\
from __future__ import annotations

import datetime
from typing import List, Optional


class Clock:
    second = 1


class Job:
    started: Optional[datetime.datetime] = None

    @property
    def second(self):
        return self

    def do(self, work) -> "Job":
        return self

    def copy(self):
        return Job()

    def __enter__(self):
        return self

    def __exit__(self, *reasons):
        pass


class Jobs(list[Job]):
    def __init__(self) -> None:
        self.last = Job()

    def first(self) -> Job | None:
        return self[0] if self else None


def every(interval=1) -> Job:
    return Job()


def make():
    return every().do(None)


def several() -> List[Job]:
    return [Job()]
""",
    "uses.py": """\
import shop
from shop.jobs import Clock, Jobs, every as each, several

shop.every().second
each(2).do(print).second.second
shop.make().copy().second
jobs = Jobs()
jobs[0].second
jobs.last.second
jobs.first().second
for job in several():
    print(f"{job.second}")
numbers = [one.second for one in jobs]
with shop.Job() as held:
    held.second
Clock().second
each().started.second


def unknown(job, clock: Clock):
    clock.second
    return job.second
""",
}


def test_objects_are_known_by_what_the_code_says(project: Path) -> None:
    result = rename_member_everywhere(project, project / "shop/jobs.py", "Job", "second", "seconds", None)
    after = result.files[project / "uses.py"][1]
    others = "".join(rf"(?<!{re.escape(name)})" for name in ("Clock()", "started", "clock", "return job"))
    expected = re.sub(others + r"\.second\b", ".seconds", FILES["uses.py"])
    assert after == expected
    left = [place.text for place in result.unsure]
    assert left == ["return job.second"]  # nothing says what `job` is; the clocks are known to be others


def test_a_method_that_overrides_is_renamed_with_the_others(workspace: Path) -> None:
    (workspace / "base.py").write_text(
        "class Base:\n    def run(self):\n        return 1\n\n    def go(self):\n        return self.run()\n"
    )
    (workspace / "sub.py").write_text(
        "from base import Base\n\n\nclass Sub(Base):\n    def run(self):\n        return 2\n"
    )
    result = rename_member_everywhere(workspace, workspace / "sub.py", "Sub", "run", "work", None)
    texts = {path.name: after for path, (_, after) in result.files.items()}
    assert texts["base.py"].count("work") == 2 and texts["sub.py"].count("work") == 1
    assert "run" not in texts["base.py"] + texts["sub.py"]


def test_a_definition_is_not_renamed_away_from_all_its_uses(workspace: Path) -> None:
    (workspace / "app.py").write_text(
        "class File:\n    def getfile(self):\n        return self\n\n\n"
        "class Buffer:\n    def getfile(self):\n        return self\n\n\n"
        "def read(source):\n    return source.getfile()\n"
    )
    (workspace / "test_app.py").write_text("from app import File\n\n\ndef test_it():\n    File().getfile()\n")
    with pytest.raises(RefactorError, match=r"app.py:12 may use this getfile or that of another class"):
        rename_member_everywhere(workspace, workspace / "app.py", "File", "getfile", "file", None)


def test_values_that_disagree_say_nothing(workspace: Path) -> None:
    (workspace / "app.py").write_text(
        "class File:\n    def size(self):\n        return self.size\n\n\n"
        "class Buffer:\n    def size(self):\n        return 1\n\n\n"
        "def read(small):\n    source = File()\n    if small:\n        source = Buffer()\n    return source.size()\n"
    )
    result = rename_member_everywhere(workspace, workspace / "app.py", "File", "size", "length", None)
    assert [place.text for place in result.unsure] == ["return source.size()"]


def test_an_abstract_class_overrides_nothing(workspace: Path) -> None:
    """`register` is a method of the metaclass of ABC, and defined in its module."""
    (workspace / "app.py").write_text(
        "from abc import ABC\n\n\nclass Extra(ABC):\n    def register(self):\n        return self.register\n"
    )
    result = rename_member_everywhere(workspace, workspace / "app.py", "Extra", "register", "enable", None)
    assert "register" not in result.files[workspace / "app.py"][1]


def test_a_method_of_a_builtin_is_not_renamed_away(workspace: Path) -> None:
    (workspace / "app.py").write_text("class Rows(dict):\n    def update(self, more):\n        self.update(more)\n")
    with pytest.raises(RefactorError, match=r"Rows.update overrides dict\.update"):
        rename_member_everywhere(workspace, workspace / "app.py", "Rows", "update", "extend", None)
