"""A move takes what the code needs along, rewrites the importers and keeps what others reach; else it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.edit.project.move import move_everywhere
from fulgur.edit.refactor.errors import RefactorError

FILES = {
    "src/pkg/__init__.py": "from .core import LIMIT, load, twice\n\n__all__ = ['LIMIT', 'load', 'twice']\n",
    "src/pkg/core.py": (
        "from __future__ import annotations\n\nimport json\nimport os\nfrom pathlib import Path\n\n"
        "from . import paths\n"
        "from .paths import absolute as full\n\nLIMIT = 3\n\n\n"
        "# Reads JSON.\ndef load(path: Path) -> dict:\n    return json.loads(Path(full(path)).read_text())\n\n\n"
        "def twice(path):\n    return [load(path), load(path)]\n\n\n"
        "def short(text):\n    return text[:LIMIT]\n\n\n"
        "def where(path):\n    return os.fspath(paths.absolute(path))\n\n\n"
        "def here():\n    return __file__\n"
    ),
    "src/pkg/paths.py": "import os\n\n\ndef absolute(path):\n    return os.path.abspath(path)\n",
    "src/pkg/user.py": (
        "from pkg.core import (\n    load,\n    short,\n)\n\n\ndef run(path):\n    return load(path), short('abcdef')\n"
    ),
    "src/pkg/lazy.py": "def run(path):\n    from .core import load as read, short\n    return read(path), short('x')\n",
    "src/pkg/taker.py": "from .core import where\n\n\nclass Box:\n    place = where('.')\n",
    "src/pkg/text.py": "'''Text.'''\n\nimport re\n\nos = re\n\n\ndef words(text):\n    return re.findall('.', text)\n",
    "tests/test_pkg.py": "import pkg.core\n\n\ndef test_it():\n    assert pkg.core.short('abcdef') == 'abc'\n",
}  # fmt: skip


def moved(project: Path, name: str, target: str) -> tuple[dict[str, str], list[str]]:
    result = move_everywhere(project, project / "src/pkg/core.py", name, target)
    texts = {path.relative_to(project).as_posix(): after for path, (_, after) in result.files.items()}
    return texts, [f"{place.path.relative_to(project)}:{place.line}" for place in result.unsure]


def test_a_function_moves_with_its_imports_into_a_new_module(project: Path) -> None:
    texts, unsure = moved(project, "load", "reading")
    assert texts["src/pkg/reading.py"] == (
        "from __future__ import annotations\n\nimport json\nfrom pathlib import Path\n\n"
        "from .paths import absolute as full\n\n\n"
        "# Reads JSON.\ndef load(path: Path) -> dict:\n    return json.loads(Path(full(path)).read_text())\n"
    )
    core = texts["src/pkg/core.py"]
    assert "from .reading import load\n" in core and "def load" not in core and "Reads JSON" not in core
    assert "import json" not in core and "pathlib" not in core and "import os\n" in core  # only what is used stays
    assert texts["src/pkg/__init__.py"].startswith("from .core import LIMIT, twice\nfrom .reading import load\n")
    assert texts["src/pkg/user.py"].startswith("from pkg.core import (\n    short,\n)\nfrom pkg.reading import load\n")
    assert "    from .core import short\n    from .reading import load as read\n" in texts["src/pkg/lazy.py"]
    assert unsure == []


def test_what_is_reached_by_the_module_stays_reachable_and_is_listed(project: Path) -> None:
    (project / "src/pkg/core.py").write_text(FILES["src/pkg/core.py"].replace("[:LIMIT]", "[:3]"))
    texts, unsure = moved(project, "short", "src/pkg/text.py")
    assert "from .text import short\n" in texts["src/pkg/core.py"]
    assert unsure == ["tests/test_pkg.py:5"] and "tests/test_pkg.py" not in texts
    assert texts["src/pkg/text.py"].endswith("\n\n\ndef short(text):\n    return text[:3]\n")


def test_a_module_that_imported_it_now_defines_it_before_it_is_used(project: Path) -> None:
    texts, _ = moved(project, "where", "taker")
    taker = texts["src/pkg/taker.py"]
    assert taker.index("def where") < taker.index("class Box") and ".core" not in taker
    assert taker.startswith("import os\n") and "from . import paths\n" in taker
    assert "def where" not in texts["src/pkg/core.py"] and "paths import absolute" in texts["src/pkg/core.py"]


@pytest.mark.parametrize(
    ("name", "target", "problem"),
    [
        ("missing", "paths", "core.py does not define missing exactly once"),
        ("load", "core", "load is already in core.py"),
        ("load", "paths", "full is called absolute in paths.py"),
        ("short", "text", "short needs LIMIT of core.py"),
        ("here", "paths", "here uses __file__"),
        ("where", "text", "os means something else in text.py"),
        ("load", "../outside.py", "there is no folder for"),
        ("load", "src/pkg/1x.py", "cannot be the name of a module"),
    ],
)
def test_refused(project: Path, name: str, target: str, problem: str) -> None:
    with pytest.raises(RefactorError, match=problem):
        moved(project, name, target)
    assert all((project / file).read_text() == text for file, text in FILES.items())


def test_an_import_cycle_is_refused(project: Path) -> None:
    (project / "src/pkg/text.py").write_text("from .user import run\n")
    with pytest.raises(RefactorError, match=r"import cycle: .*user.py"):
        moved(project, "load", "text")


@pytest.mark.parametrize(
    ("code", "runs"),
    [
        ("if TYPE_CHECKING:\n    IMPORT\n", False),
        ("if typing.TYPE_CHECKING:\n    IMPORT\n", False),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    IMPORT\n", True),
        ("if not TYPE_CHECKING:\n    IMPORT\n", True),
        ("if not TYPE_CHECKING:\n    pass\nelse:\n    IMPORT\n", False),
        ("if TYPE_CHECKING and fast:\n    IMPORT\n", False),
        ("if TYPE_CHECKING or fast:\n    IMPORT\n", True),
        ("if not TYPE_CHECKING or fast:\n    pass\nelse:\n    IMPORT\n", False),
        ("if fast:\n    pass\nelif TYPE_CHECKING:\n    IMPORT\n", False),
        ("if fast:\n    pass\nelif not TYPE_CHECKING:\n    IMPORT\n", True),
        ("if __name__ == '__main__':\n    IMPORT\n", False),
        ("if __name__ != '__main__':\n    IMPORT\n", True),
        ("def late():\n    IMPORT\n", False),
    ],
)
def test_an_import_counts_for_a_cycle_where_it_may_run_at_import_time(project: Path, code: str, runs: bool) -> None:
    (project / "src/pkg/text.py").write_text(code.replace("IMPORT", "from .user import run"))
    if not runs:
        assert moved(project, "load", "text")
        return
    with pytest.raises(RefactorError, match=r"import cycle: .*user.py"):
        moved(project, "load", "text")
