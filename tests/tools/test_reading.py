"""read, list and search."""

import asyncio
from pathlib import Path

import pytest

from fulgur.errors import FulgurError
from fulgur.tools import reading
from fulgur.tools.base import BadCall, Tool
from fulgur.tools.reading import reading_tools
from fulgur.tools.writing import writing_tools
from fulgur.workspace.files import Files


@pytest.fixture
def tools(files: Files, workspace: Path) -> dict[str, Tool]:  # type: ignore[type-arg]
    for name, text in {
        "src/a.py": "def f():\n    return 'x'\n",
        "src/b.js": "const f = 1\n",
        "build/out.py": "def f(): pass\n",
        "node_modules/m.py": "def f(): pass\n",
        "notes/skip.txt": "def f\n",
        "notes/keep.txt": "def f\n",
        ".gitignore": "/build/\n*.log\n",
        "notes/.gitignore": "*.txt\n!keep.txt\n",
        "x.log": "def f\n",
    }.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text)
    (workspace / "binary").write_bytes(b"def f\0")
    return {tool.name: tool for tool in [*reading_tools(files), *writing_tools(files)]}


def use(tool: Tool, arguments: str) -> str:  # type: ignore[type-arg]
    return asyncio.run(tool.run(tool.parse(arguments), lambda text: None)).output  # type: ignore[arg-type]


@pytest.mark.parametrize("ripgrep", [True, False])
def test_search(tools: dict[str, Tool], ripgrep: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[type-arg]
    if not ripgrep:
        monkeypatch.setattr(reading.begin, "program", lambda name, *avoid: None)
    elif reading.begin.program("rg") is None:
        pytest.skip("`rg` is not installed (Debian: apt-get install ripgrep)")
    assert use(tools["search"], '{"pattern": "def f"}') == "notes/keep.txt:1: def f\nsrc/a.py:1: def f():"
    assert use(tools["search"], '{"pattern": "f", "glob": "*.js"}') == "src/b.js:1: const f = 1"
    assert use(tools["search"], '{"pattern": "x", "path": "src/a.py"}') == "src/a.py:2:     return 'x'"
    assert use(tools["search"], '{"pattern": "zzz"}') == "[no match]"
    assert "more than 1 matches" in use(tools["search"], '{"pattern": "f", "limit": 1}')
    with pytest.raises(FulgurError):
        use(tools["search"], '{"pattern": "("}')
    with pytest.raises(FulgurError, match="does not exist"):
        use(tools["search"], '{"pattern": "x", "path": "nowhere"}')


def test_list(tools: dict[str, Tool]) -> None:  # type: ignore[type-arg]
    shown = use(tools["list"], "{}")
    assert shown.splitlines() == [
        "notes/",
        "  .gitignore",
        "  keep.txt",
        "src/",
        "  a.py",
        "  b.js",
        ".gitignore",
        "binary",
    ]
    assert use(tools["list"], '{"depth": 1, "path": "src"}') == "a.py\nb.js"


def test_read(tools: dict[str, Tool], workspace: Path) -> None:  # type: ignore[type-arg]
    (workspace / "long").write_text("".join(f"line {n}\n" for n in range(1, 31)))
    shown = use(tools["read"], '{"path": "long", "start": 10, "lines": 2}')
    assert shown == "   10\tline 10\n   11\tline 11\n[30 lines in all; go on with start=12]"
    with pytest.raises(FulgurError, match="has 30 lines"):
        use(tools["read"], '{"path": "long", "start": 99}')
    with pytest.raises(FulgurError, match="binary"):
        use(tools["read"], '{"path": "binary"}')
    (workspace / "wide").write_text("y" * 2000 + "\n")
    assert len(use(tools["read"], '{"path": "wide"}')) < 600
    (workspace / "huge").write_text("z" * 100 + "\n" + ("w" * 99 + "\n") * 5000)
    assert len(use(tools["read"], '{"path": "huge", "lines": 9000}')) < 50_000


def test_edit(tools: dict[str, Tool], workspace: Path) -> None:  # type: ignore[type-arg]
    (workspace / "e.py").write_bytes(b"if a:\r\n    x = 1\r\n    y = 1\r\n")
    use(tools["edit"], '{"path": "e.py", "old": "x = 1\\n    y", "new": "x = 2\\n    y"}')
    assert (workspace / "e.py").read_bytes() == b"if a:\r\n    x = 2\r\n    y = 1\r\n"
    note = use(tools["edit"], '{"path": "e.py", "old": "x = 2\\ny = 1", "new": "x = 3\\ny = 3\\nz = 3"}')
    assert "ignoring indentation" in note
    assert (workspace / "e.py").read_bytes() == b"if a:\r\n    x = 3\r\n    y = 3\r\n    z = 3\r\n"
    with pytest.raises(FulgurError, match="3 times"):
        use(tools["edit"], '{"path": "e.py", "old": "= 3", "new": "= 4"}')
    use(tools["edit"], '{"path": "e.py", "old": "= 3", "new": "= 4", "all": true}')
    assert (workspace / "e.py").read_bytes().count(b"= 4") == 3
    with pytest.raises(FulgurError, match="not in the file") as caught:
        use(tools["edit"], '{"path": "e.py", "old": "if aa:", "new": "x"}')
    assert "line 1: if a:" in str(caught.value.hint)


def test_bad_arguments_say_how_to_mend_them(tools: dict[str, Tool]) -> None:  # type: ignore[type-arg]
    with pytest.raises(BadCall) as caught:
        tools["edit"].parse('{"path": "a", "old": "x"}')
    assert "missing required field `new`" in caught.value.message
    assert caught.value.hint == 'Its arguments: {"path": string, "old": string, "new": string, "all"?: boolean}'
    with pytest.raises(BadCall, match="not valid JSON"):
        tools["read"].parse("{")


def test_schemas_are_plain(tools: dict[str, Tool]) -> None:  # type: ignore[type-arg]
    for tool in tools.values():
        spec = tool.spec()
        assert spec["parameters"]["type"] == "object" and "$ref" not in str(spec)
        assert spec["parameters"]["additionalProperties"] is False
    assert tools["read"].spec()["parameters"]["properties"]["path"]["description"]
