"""A function becomes async together with its callers, or the places in the way are listed and nothing changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.edit.project.coroutine import make_async_everywhere
from fulgur.edit.refactor.errors import RefactorError

FILES = {
    "app/__init__.py": "from .net import fetch\n",
    "app/net.py": (
        "def fetch(url):\n    return url\n\n\ndef size(url):\n    return len(fetch(url)) + fetch(url).count('x')\n\n\n"
        "def main():\n    if fetch('a'):\n        print([size(u) for u in 'ab'])\n\n\n"
        "if __name__ == '__main__':\n    main()\n"
    ),
    "app/more.py": (
        "from app import net\n\n\nclass Box:\n    def fill(self):\n        return net.size('b')\n\n\n"
        "def use(box):\n    return box.fill()\n\n\nasync def ready():\n    return net.fetch('c')\n"
    ),
    "tests/test_net.py": "from app.net import fetch\n\n\ndef test_fetch():\n    assert fetch('a') == 'a'\n",
}  # fmt: skip


def test_every_caller_waits(project: Path) -> None:
    result = make_async_everywhere(project, project / "app/net.py", "fetch", None)
    texts = {path.relative_to(project).as_posix(): after for path, (_, after) in result.files.items()}
    assert texts == {
        "app/net.py": (
            "import asyncio\n\nasync def fetch(url):\n    return url\n\n\n"
            "async def size(url):\n    return len(await fetch(url)) + (await fetch(url)).count('x')\n\n\n"
            "async def main():\n    if (await fetch('a')):\n        print([(await size(u)) for u in 'ab'])\n\n\n"
            "if __name__ == '__main__':\n    asyncio.run(main())\n"
        ),
        "app/more.py": (
            "from app import net\n\n\nclass Box:\n    async def fill(self):\n        return await net.size('b')\n\n\n"
            "async def use(box):\n    return await box.fill()\n\n\n"
            "async def ready():\n    return await net.fetch('c')\n"
        ),
        "tests/test_net.py": (
            "import asyncio\n\nfrom app.net import fetch\n\n\n"
            "def test_fetch():\n    assert asyncio.run(fetch('a')) == 'a'\n"
        ),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("from app.net import fetch\nrows = map(fetch, 'ab')\n", r"extra.py:2 fetch is used as a value"),
        ("from app.net import fetch\nrow = fetch('a')\n", "extra.py:2 fetch is called while the module is imported"),
        ("from app.net import fetch\nkey = lambda x: fetch(x)\n", "in a lambda or a generator"),
        ("from app.net import fetch\ndef f(x): return any(fetch(y) for y in x)\n", "in a lambda or a generator"),
        ("from app.net import fetch\ndef f(x):\n    yield fetch(x)\n", "f is a generator"),
        ("from app.net import fetch\nclass A:\n    def __len__(self): return fetch(1)\n", "called by Python itself"),
        ("import functools\nfrom app.net import fetch\n@functools.cache\ndef f(x): return fetch(x)\n", "decorated"),
        ("from app.net import fetch\nclass A:\n    def go(self): return fetch(1)\nclass B:\n    def go(self): ...\n",
         "other classes, here or imported, have a go too"),
        ("from unittest import mock\nmock.patch('app.net.fetch')\n", "the string “app.net.fetch” names it"),
    ],
    ids=["handed on", "at import", "lambda", "generator", "yield", "dunder", "decorator", "rival", "mock"],
)  # fmt: skip
def test_what_stands_in_the_way_is_listed(project: Path, code: str, problem: str) -> None:
    (project / "app/extra.py").write_text(code)
    with pytest.raises(RefactorError, match=problem):
        make_async_everywhere(project, project / "app/net.py", "fetch", None)


def test_a_program_that_is_started_by_name_stays_as_it_is(project: Path) -> None:
    (project / "pyproject.toml").write_text("[project.scripts]\nnet = 'app.net:main'\n")
    with pytest.raises(RefactorError, match=r"main is started by pyproject.toml"):
        make_async_everywhere(project, project / "app/net.py", "fetch", None)


AT_IMPORT = "extra.py:[0-9]+ fetch is called while the module is imported"


@pytest.mark.parametrize(
    ("code", "starts"),
    [
        ("if __name__ == '__main__':\n    fetch('a')\n", True),
        ("if '__main__' == __name__:\n    fetch('a')\n", True),
        ("if __name__ == '__main__' and fetch('a'):\n    print()\n", True),
        ("if __name__ == '__main__' and ready:\n    fetch('a')\n", True),
        ("if not __name__ == '__main__':\n    print()\nelse:\n    fetch('a')\n", True),
        ("if __name__ != '__main__':\n    print()\nelse:\n    fetch('a')\n", True),
        ("if ready:\n    print()\nelif __name__ == '__main__':\n    fetch('a')\n", True),
        ("if __name__ == '__main__':\n    print()\nelse:\n    fetch('a')\n", False),
        ("if __name__ != '__main__':\n    fetch('a')\n", False),
        ("if __name__ == '__main__' or ready:\n    fetch('a')\n", False),
        ("if fetch('a') and __name__ == '__main__':\n    print()\n", False),
    ],
)
def test_asyncio_runs_only_what_the_program_starts(project: Path, code: str, starts: bool) -> None:
    (project / "app/extra.py").write_text(f"from app.net import fetch\n{code}")
    if not starts:
        with pytest.raises(RefactorError, match=AT_IMPORT):
            make_async_everywhere(project, project / "app/net.py", "fetch", None)
        return
    result = make_async_everywhere(project, project / "app/net.py", "fetch", None)
    assert "asyncio.run(fetch('a'))" in result.files[project / "app/extra.py"][1]
