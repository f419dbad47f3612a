"""A function is put in place of its calls in every file, exactly or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.edit.project.inline import inline_everywhere
from fulgur.edit.refactor.errors import RefactorError

FILES = {
    "pkg/__init__.py": "",
    "pkg/core.py": (
        'def double(x, by=2):\n    """Twice."""\n    return x * by\n\n\ndef use(n):\n'
        "    return double(n) + double(n + 1, by=n)\n\n\nprint(double(double(3)))\n"
    ),
    "pkg/other.py": "from pkg.core import double, use\n\nvalue = use(double(read()))\n",
    "pkg/by_module.py": "from pkg import core\n\nvalue = -core.double(4)\n",
}


def inlined(project: Path) -> dict[str, str]:
    return {
        path.name: after
        for path, (_, after) in inline_everywhere(project, project / "pkg/core.py", "double").files.items()
    }


def test_every_call_gets_the_value_and_the_imports_go(project: Path) -> None:
    files = inlined(project)
    assert files["core.py"] == "def use(n):\n    return (n * 2) + ((n + 1) * n)\n\n\nprint((3 * 2) * 2)\n"
    assert files["other.py"] == "from pkg.core import use\n\nvalue = use(read() * 2)\n"
    assert files["by_module.py"] == "from pkg import core\n\nvalue = -(4 * 2)\n"


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("core.py", "def double(x):\n    return x + x\n\n\nprint(double(read()))\n", "exactly once"),
        ("core.py", "def double(x):\n    return g() + x\n\n\nprint(double(read()))\n", "later than before"),
        ("core.py", "def double(a, b):\n    return b - a\n\n\nprint(double(f(), g()))\n", "order"),
        ("core.py", "def double(x):\n    print(x)\n    return x\n\n\ndouble(1)\n", "more than return"),
        ("core.py", "def double(x):\n    return double(x)\n\n\ndouble(1)\n", "calls itself"),
        ("core.py", "def double(x):\n    return f'{x}'\n\n\ndouble(1)\n", "f-string"),
        ("core.py", "LIMIT = 3\n\n\ndef double(x):\n    return x * LIMIT\n", "LIMIT is another name at"),
        ("core.py", "def double(*x):\n    return x\n\n\ndouble(1)\n", "any number of arguments"),
        ("core.py", "def double(x):\n    return [i for i in x]\n\n\ni = []\ndouble(i)\n", "means something else"),
        ("other.py", "from pkg.core import double\n\nprint(map(double, [1]))\n", "used as a value"),
        ("other.py", "from pkg.core import double\n", "without calling it"),
        ("other.py", "from pkg.core import double\n\nprint(double(*[1]))\n", r"passes \*"),
        ("other.py", "name = 'pkg.core.double'\n", "in a string"),
    ],
)  # fmt: skip
def test_what_is_not_exact_is_refused_with_the_place(project: Path, file: str, text: str, why: str) -> None:
    if file == "core.py":
        (project / "pkg/other.py").write_text("from pkg.core import double\n\nprint(double(1))\n")
        (project / "pkg/by_module.py").unlink()
    (project / "pkg" / file).write_text(text)
    with pytest.raises(RefactorError, match=why):
        inlined(project)
