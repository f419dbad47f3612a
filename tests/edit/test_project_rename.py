"""A rename reaches every importer, changes nothing else, and lists what it cannot prove."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fulgur.edit.project.rename import Changed, rename_everywhere
from fulgur.edit.refactor.errors import RefactorError

FILES = {
    "src/pkg/__init__.py": "from .core import load as load\nfrom .wide import *\n\n__all__ = ['load', 'widen']\n",
    "src/pkg/core.py": (
        "def load(path):\n    '''load a path'''\n    return path\n\n\n"
        "def twice(path):\n    return load(load(path))\n"
    ),
    "src/pkg/wide.py": "__all__ = ['widen']\n\n\ndef widen(x):\n    return x\n",
    "src/pkg/other.py": (
        "import pkg.core\nfrom pkg import core as c\nfrom . import core\n\n\n"
        "def run(path):\n    return pkg.core.load(c.load(core.load(path)))\n"
    ),
    "src/pkg/local.py": (
        "def run(path):\n    from pkg.core import load\n    return load(path)\n\n\n"
        "def load():\n    return 0\n"
    ),
    "src/pkg/alias.py": "from .core import load as read\n\n\ndef run(path):\n    return read(path)\n",
    "src/pkg/own.py": (
        "class Store:\n    def load(self):\n        return 1\n\n\n"
        "def run(store, load=2):\n    return store.load() + load\n"
    ),
    "tests/test_pkg.py": (
        "from unittest import mock\n\nimport pkg\nfrom pkg import core\n\n\ndef test_all():\n"
        "    with mock.patch('pkg.core.load') as faked, mock.patch.object(core, 'load'):\n"
        "        assert getattr(core, 'load') and faked is not None\n"
        "    assert pkg.load(3) == 3 and hasattr(pkg, 'load')\n"
    ),
    "README.md": "Call `load` first.\n",
}  # fmt: skip


def written(project: Path, result: Changed) -> dict[str, str]:
    for path, (before, after) in result.files.items():
        assert path.read_text() == before
        path.write_text(after)
    return {str(path.relative_to(project)): after for path, (_, after) in result.files.items()}


def runs(project: Path, code: str) -> str:
    environment = {"PYTHONPATH": str(project / "src")}
    done = subprocess.run([sys.executable, "-c", code], cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_function_is_followed_through_its_imports(project: Path) -> None:
    result = rename_everywhere(project, project / "src/pkg/core.py", "load", "fetch")
    after = written(project, result)
    assert sorted(after) == [
        "src/pkg/__init__.py", "src/pkg/alias.py", "src/pkg/core.py", "src/pkg/local.py", "src/pkg/other.py",
        "tests/test_pkg.py",
    ]  # fmt: skip
    assert "from .core import fetch as fetch\n" in after["src/pkg/__init__.py"]
    assert "__all__ = ['fetch', 'widen']" in after["src/pkg/__init__.py"]
    assert "return fetch(fetch(path))" in after["src/pkg/core.py"] and "load a path" in after["src/pkg/core.py"]
    assert "pkg.core.fetch(c.fetch(core.fetch(path)))" in after["src/pkg/other.py"]
    assert "from .core import fetch as read" in after["src/pkg/alias.py"]
    assert "import fetch\n    return fetch(path)\n\n\ndef load():" in after["src/pkg/local.py"]  # another `load`
    assert "mock.patch('pkg.core.fetch')" in after["tests/test_pkg.py"]
    assert "patch.object(core, 'fetch')" in after["tests/test_pkg.py"]
    runs(project, "import sys; sys.path.insert(0, 'tests'); import pkg.local, pkg.other, test_pkg; test_pkg.test_all()")
    assert runs(project, "import pkg.local; print(pkg.local.run(4), pkg.local.load())") == "4 0"


def test_what_cannot_be_proven_is_listed(project: Path) -> None:
    result = rename_everywhere(project, project / "src/pkg/core.py", "load", "fetch")
    left = {(place.path.name, place.line, place.kind) for place in result.unsure}
    assert left == {("core.py", 2, "text"), ("own.py", 7, "attribute"), ("README.md", 1, "file")}


def test_star_imports_carry_a_name(project: Path) -> None:
    (project / "src/pkg/user.py").write_text("from pkg import *\n\nprint(widen(5))\n")
    after = written(project, rename_everywhere(project, project / "src/pkg/wide.py", "widen", "broaden"))
    assert after["src/pkg/user.py"] == "from pkg import *\n\nprint(broaden(5))\n"
    assert "'broaden'" in after["src/pkg/__init__.py"] and "'broaden'" in after["src/pkg/wide.py"]
    assert runs(project, "import pkg.user") == "5"


def test_annotations_in_quotes(project: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.shapes import Box\n\n\n"
    text += "def f(b: 'list[Box]') -> 'Box': ...\n"
    (project / "src/pkg/shapes.py").write_text("class Box:\n    def grow(self) -> 'Box': ...\n")
    (project / "src/pkg/hints.py").write_text(text)
    after = written(project, rename_everywhere(project, project / "src/pkg/shapes.py", "Box", "Crate"))
    assert "-> 'Crate'" in after["src/pkg/shapes.py"]
    assert "def f(b: 'list[Crate]') -> 'Crate': ..." in after["src/pkg/hints.py"]


def test_another_library_of_the_same_name_is_left_alone(project: Path) -> None:
    (project / "src/pkg/fallback.py").write_text(
        "try:\n    from elsewhere import load\nexcept ImportError:\n    from pkg.core import load\n\nprint(load(6))\n"
    )
    after = written(project, rename_everywhere(project, project / "src/pkg/core.py", "load", "fetch"))
    assert "from elsewhere import load as fetch" in after["src/pkg/fallback.py"]
    assert runs(project, "import pkg.fallback") == "6"


def test_a_clash_in_an_importer_is_refused(project: Path) -> None:
    (project / "src/pkg/clash.py").write_text("from pkg.core import load\nfetch = 1\nprint(load, fetch)\n")
    with pytest.raises(RefactorError, match="fetch is already used"):
        rename_everywhere(project, project / "src/pkg/core.py", "load", "fetch")


def test_a_file_that_does_not_parse_is_no_obstacle(project: Path) -> None:
    (project / "src/pkg/broken.py").write_text("from pkg.core import load\ndef (\n")
    assert len(rename_everywhere(project, project / "src/pkg/core.py", "load", "fetch").files) == 6
