"""A change of parameters reaches the calls in every file, and lists what may be called unseen."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.edit.project.signature import change_signature
from fulgur.edit.refactor.errors import RefactorError
from fulgur.text.edit_format import Call

FILES = {
    "pkg/__init__.py": "from pkg.core import load\n",
    "pkg/core.py": "def load(path, mode='r'):\n    return path\n\n\nload('here')\n",
    "pkg/calls.py": (
        "import pkg\nfrom pkg import core\nfrom pkg.core import load as read\n\n"
        "read('a', mode='w')\ncore.load('b')\npkg.load('c', 'x')\n"
    ),
    "pkg/other.py": "def load(path):\n    return path\n\n\nload('mine')\n",
    "pkg/handed.py": "from pkg.core import load\n\nprint(list(map(load, 'ab')))\n",
}


def changed(project: Path, *words: str) -> tuple[dict[str, str], list[tuple[str, int, str]]]:
    result = change_signature(project, project / "pkg/core.py", Call(words[0], words[1:]))
    unsure = [(place.path.name, place.line, place.kind) for place in result.unsure]
    return {path.name: after for path, (_, after) in result.files.items()}, unsure


def test_a_parameter_is_added_with_its_callers(project: Path) -> None:
    files, unsure = changed(project, "add_parameter", "load", "encoding", "'utf-8'")
    assert sorted(files) == ["calls.py", "core.py"]
    assert files["core.py"].startswith("def load(path, mode='r', *, encoding):")
    assert files["calls.py"].endswith(
        "read('a', mode='w', encoding='utf-8')\ncore.load('b', encoding='utf-8')\n"
        "pkg.load('c', 'x', encoding='utf-8')\n"
    )
    assert unsure == [("handed.py", 3, "value")]


def test_a_default_leaves_the_callers_alone(project: Path) -> None:
    files, _ = changed(project, "add_parameter", "load", "encoding=None")
    assert list(files) == ["core.py"]


def test_a_parameter_is_removed_with_its_arguments(project: Path) -> None:
    files, _ = changed(project, "remove_parameter", "load", "mode")
    assert files["calls.py"].endswith("read('a')\ncore.load('b')\npkg.load('c')\n")


def test_a_parameter_is_renamed_where_it_is_passed_by_keyword(project: Path) -> None:
    files, _ = changed(project, "rename_parameter", "load", "mode", "how")
    assert files["calls.py"].endswith("read('a', how='w')\ncore.load('b')\npkg.load('c', 'x')\n")


def test_arguments_by_keyword(project: Path) -> None:
    files, _ = changed(project, "use_keywords", "load")
    assert files["calls.py"].endswith("read(path='a', mode='w')\ncore.load(path='b')\npkg.load(path='c', mode='x')\n")


def test_a_call_that_hides_its_arguments_stops_it(project: Path) -> None:
    (project / "pkg/star.py").write_text("from pkg.core import load\n\nload(*['a', 'b'])\n")
    with pytest.raises(RefactorError, match=r"passes \* or \*\*"):
        changed(project, "remove_parameter", "load", "mode")


def test_calls_of_a_method_elsewhere_are_listed(project: Path) -> None:
    (project / "pkg/core.py").write_text("class Store:\n    def get(self, key):\n        return key\n")
    (project / "pkg/uses.py").write_text("def f(store):\n    return store.get(1)\n")
    files, unsure = changed(project, "add_parameter", "Store.get", "default=None")
    assert list(files) == ["core.py"] and unsure == [("uses.py", 2, "attribute")]


def test_a_second_definition_stops_it(project: Path) -> None:
    text = "try:\n    from pkg.core import load\nexcept ImportError:\n    def load(path): ...\n\nload('d')\n"
    (project / "pkg/maybe.py").write_text(text)
    with pytest.raises(RefactorError, match=r"maybe.py line 4 defines load once more"):
        changed(project, "add_parameter", "load", "encoding", "None")
