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
    files, unsure = changed(project, "add_parameter", "Store.get", "default", "None")
    assert list(files) == ["core.py"] and unsure == [("uses.py", 2, "attribute")]
    assert changed(project, "add_parameter", "Store.get", "default=None")[1] == []  # it may go on as it is


def test_a_second_definition_stops_it(project: Path) -> None:
    text = "try:\n    from pkg.core import load\nexcept ImportError:\n    def load(path): ...\n\nload('d')\n"
    (project / "pkg/maybe.py").write_text(text)
    with pytest.raises(RefactorError, match=r"maybe.py line 4 defines load again"):
        changed(project, "add_parameter", "load", "encoding", "None")


def method(project: Path, text: str, *words: str) -> tuple[str, list[int]]:
    (project / "pkg/core.py").write_text(text)
    result = change_signature(project, project / "pkg/core.py", Call(words[0], words[1:]))
    return result.files[project / "pkg/core.py"][1], [place.line for place in result.unsure]


BASE = (
    "class Base:\n    def get(self, number=-1):\n        return number\n\n\n"
    "class Child(Base):\n    def get(self, number=-1):\n        return super().get(number=number)\n\n\n"
    "class Other:\n    def get(self, number):\n        return self.get(number=1)\n\n\n"
    "def use(base: Base, other):\n    base.get(number=2)\n    other.get(number=3)\n    other.get(4)\n"
)


def test_a_parameter_of_a_method_is_renamed_with_its_versions_and_known_objects(project: Path) -> None:
    after, left = method(project, BASE, "rename_parameter", "Base.get", "number", "count")
    assert after.startswith("class Base:\n    def get(self, count=-1):\n        return count\n")
    assert "class Child(Base):\n    def get(self, count=-1):\n        return super().get(count=count)\n" in after
    assert "class Other:\n    def get(self, number):\n        return self.get(number=1)\n" in after
    assert after.endswith("    base.get(count=2)\n    other.get(number=3)\n    other.get(4)\n")
    assert left == [18]  # of the unknown object, and only where the name is passed
    assert method(project, BASE, "rename_parameter", "Child.get", "number", "count")[0] == after  # from below too


def test_a_method_that_others_override_loses_no_parameter(project: Path) -> None:
    with pytest.raises(RefactorError, match=r"Child in core\.py has its own get"):
        method(project, BASE.replace("return number", "return 1"), "remove_parameter", "Base.get", "number")


def test_a_method_of_another_class_in_the_same_file_is_left_alone(project: Path) -> None:
    """`self.run` in B is not the one of A."""
    text = (
        "class A:\n    def run(self, dry=False):\n        return dry\n\n\n"
        "class B:\n    def run(self, dry=False):\n        return self.run(dry=True)\n"
    )
    after, _ = method(project, text, "rename_parameter", "A.run", "dry", "test")
    assert after == text.replace("dry", "test", 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""X.\n\n    :param path: where\n    :type path: str\n    :param str path2: no\n    """', 2),
        ('"""X.\n\n    Args:\n        path: where\n        mode (str): how to read ``path``\n    """', 2),
        ('"""X.\n\n    Parameters\n    ----------\n    path : str\n        The path.\n\n    Returns\n    -------\n'
         "    path : str\n    \"\"\"", 1),
        ('"""Read the path."""', 0),
    ],
    ids=["sphinx", "google", "numpy", "prose"],
)  # fmt: skip
def test_the_docstring_follows_a_renamed_parameter(project: Path, text: str, expected: int) -> None:
    (project / "pkg/core.py").write_text(f"def load(path, mode='r'):\n    {text}\n    return path\n")
    files, _ = changed(project, "rename_parameter", "load", "path", "file")
    doc = files["core.py"].partition('"""')[2].partition('"""')[0]
    assert doc.count("file") == expected


INHERITED = {
    "pkg/core.py": (
        "class Error(Exception):\n    def __init__(self, value, path=None):\n        self.value = value\n\n\n"
        "class Worse(Error):\n    pass\n\n\n"
        "class Own(Error):\n    def __init__(self, value):\n        super().__init__(value=value)\n"
    ),
    "pkg/calls.py": (
        "from pkg.core import Error, Own, Worse\n\n\nclass Mine(Worse):\n    def __init__(self):\n"
        "        super().__init__(value=1, path=2)\n\n\n"
        "def f():\n    Error(value=1)\n    Worse(value=2)\n    Own(value=3)\n    Error.__init__(Mine(), value=4)\n"
    ),
}  # fmt: skip


def test_a_parameter_of_a_constructor_follows_the_subclasses_that_have_it(project: Path) -> None:
    for name, text in INHERITED.items():
        (project / name).write_text(text)
    files, _ = changed(project, "rename_parameter", "Error.__init__", "value", "found")
    assert "def __init__(self, found, path=None):\n        self.value = found\n" in files["core.py"]
    assert "def __init__(self, value):\n        super().__init__(found=value)\n" in files["core.py"]
    assert files["calls.py"] == INHERITED["pkg/calls.py"].replace("value=", "found=").replace("Own(found", "Own(value")
    with pytest.raises(RefactorError, match="__init__ directly"):
        changed(project, "remove_parameter", "Error.__init__", "path")


def test_what_would_be_keyword_only_too_is_named_by_its_place(project: Path) -> None:
    (project / "pkg/core.py").write_text("def f(a, b=1, c=2, d=3):\n    return a\n")
    with pytest.raises(RefactorError, match="c comes after b and would be keyword-only too"):
        changed(project, "keyword_only", "f", "d", "b")
