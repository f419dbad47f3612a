# ruff: noqa: E501 (tables of sources read better with one a line)
"""Guards against fast hallucination: what an edit introduces must parse, exist and pass its tests."""

from pathlib import Path

import pytest
from agent_world import agent_on, call, go, say, serving

from fulgur.agent import guard_names
from fulgur.agent.guard_names import undefined_names, unknown_members
from fulgur.agent.guard_syntax import syntax_problems
from fulgur.agent.guard_tests import touching_tests
from fulgur.agent.guards import added_lines
from fulgur.agent.modules import Modules
from fulgur.protocol.agent import GuardReported, TurnDone

HELPER = "def load(path, *, strict=False):\n    return path\n\n\nclass Store:\n    def __init__(self, size):\n        self.size = size\n\n    def get(self, key):\n        return self.size\n"

UNKNOWN = {
    "missing module": ("import nosuchmodule_x\n", "there is no module named nosuchmodule_x"),
    "missing name": ("from helper import lod\n", "helper has no name lod (nearest: load)"),
    "module attribute": ("import helper\nhelper.laod(1)\n", "helper has no attribute laod (nearest: load)"),
    "library attribute": ("import os\nos.getcwdd()\n", "os has no attribute getcwdd (nearest: getcwd"),
    "library attribute in a module": ("import math\nmath.sqroot(2)\n", "math has no attribute sqroot (nearest: sqrt)"),
    "parameter": ("from helper import load\nload('x', stict=True)\n", "load() has no parameter stict (nearest: strict)"),
    "too many": ("import helper\nhelper.load(1, 2)\n", "helper.load() takes 1 positional arguments, 2 are given"),
    "class call": ("from helper import Store\nStore(1, depth=2)\n", "Store() has no parameter depth"),
    "library parameter": ("import shutil\nshutil.copy('a', 'b', follow=True)\n", "shutil.copy() has no parameter follow"),
    "self": ("class A:\n    def f(self):\n        return self.gg\n    def g(self):\n        pass\n", "self has no attribute gg (nearest: g)"),
}  # fmt: skip

FINE = {
    "guarded import": "try:\n    import nosuchmodule_x\nexcept ImportError:\n    nosuchmodule_x = None\n",
    "kwargs": "def f(**k):\n    return k\n\n\nf(a=1)\n",
    "splat": "from helper import load\nargs = (1, 2)\nload(*args)\n",
    "decorated": "import functools\n\n\n@functools.cache\ndef f(a):\n    return a\n\n\nf(b=1)\n",
    "base unknown": "import threading\n\n\nclass A(threading.Thread):\n    def f(self):\n        return self.name2\n",
    "base known": "class B:\n    x = 1\n\n\nclass A(B):\n    def f(self):\n        return self.x\n",
    "set elsewhere": "class A:\n    def f(self):\n        self.x = 1\n\n    def g(self):\n        return self.x\n",
    "rebound": "import math\n\n\ndef f(math):\n    return math.nothing\n",
    "submodule": "import os.path\nos.path.join('a')\n",
    "dataclass": "import dataclasses\n\n\n@dataclasses.dataclass\nclass P:\n    x: int\n\n\nP(x=1)\n",
    "getattr": "class A:\n    def __getattr__(self, n):\n        return n\n\n    def f(self):\n        return self.anything\n",
}  # fmt: skip


def everything(source: str) -> set[int]:
    return set(range(1, source.count("\n") + 2))


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_members_are_found(name: str, workspace: Path) -> None:
    (workspace / "helper.py").write_text(HELPER)
    source, wanted = UNKNOWN[name]
    found = unknown_members(source, everything(source), Modules(workspace))
    assert len(found) == 1 and wanted in found[0]
    assert unknown_members(source, set(), Modules(workspace)) == []


@pytest.mark.parametrize("name", FINE)
def test_what_exists_or_cannot_be_known_is_left_alone(name: str, workspace: Path) -> None:
    (workspace / "helper.py").write_text(HELPER)
    assert unknown_members(FINE[name], everything(FINE[name]), Modules(workspace)) == []


@pytest.mark.parametrize("with_ruff", [True, False])
def test_undefined_names(with_ruff: bool, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_ruff:
        monkeypatch.setattr(guard_names.shutil, "which", lambda *args, **kwargs: None)
    source = "import os\nx = 1\n\n\ndef f(a):\n    global later\n    later = 2\n    y = [a for a in os.listdir()]\n    return x + y + zz + later + len(y)\n"
    found = undefined_names(source, workspace / "a.py", everything(source))
    assert len(found) == 1 and found[0].startswith("line 9") and "zz" in found[0]
    assert undefined_names(source, workspace / "a.py", {1, 2}) == []


@pytest.mark.parametrize(
    ("name", "source", "line"),
    [
        ("a.py", "def f(:\n", 1),
        ("a.json", "{,}", None),
        ("a.toml", "a = \n", None),
        ("a.js", "function f( {\n  return 1\n}\n", 1),
        ("a.ts", "const a: = 1\n", 1),
        ("a.go", "package a\nfunc f( {\n", 2),
        ("a.rs", "fn f( { }\n", 1),
    ],
)
def test_what_does_not_parse(name: str, source: str, line: int | None) -> None:
    problems = syntax_problems(name, source)
    assert problems and (line is None or problems[0].startswith(f"line {line}"))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.py", "x: int = 1\n"),
        ("a.js", "const f = async () => { await 1 }\n"),
        ("a.tsx", "export const A = () => <div>{1}</div>\n"),
        ("a.go", "package a\n\nfunc f() int { return 1 }\n"),
        ("a.rs", "pub fn f() -> i32 { 1 }\n"),
        ("a.unknown", "((("),
    ],
)
def test_what_parses(name: str, source: str) -> None:
    assert syntax_problems(name, source) == []


def test_added_lines() -> None:
    diff = "--- a/x\n+++ b/x\n@@ -1,3 +1,4 @@\n a\n-b\n+B\n+C\n c\n@@ -10,2 +11,2 @@\n x\n-y\n+Y\n"
    assert added_lines(diff) == {2, 3, 12}


def test_tests_that_touch_a_file(workspace: Path) -> None:
    for name, text in {
        "src/pkg/core.py": "",
        "tests/test_core.py": "",
        "tests/test_other.py": "from pkg.core import f\n",
        "tests/test_third.py": "from pkg import core, y\n",
        "tests/test_far.py": "import pkg.corex\n",
        "node_modules/test_core.py": "",
    }.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text)
    wanted = ["tests/test_core.py", "tests/test_other.py", "tests/test_third.py"]
    assert touching_tests(workspace, ["src/pkg/core.py"]) == wanted
    assert touching_tests(workspace, ["README.md"]) == []


def patched(old: str, new: str) -> dict:  # type: ignore[type-arg]
    patch = f"*** Begin Patch\n*** Update File: calc.py\n@@\n-{old}\n+{new}\n*** End Patch"
    return call("apply_patch", {"patch": patch}, times=1)


def test_problems_are_fed_back_once(workspace: Path) -> None:
    (workspace / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    replies = [
        patched("    return a + b", "    return summ(a, b)"),
        say("Done.", times=1),
        patched("    return summ(a, b)", "    return sumn(a, b)"),
        say("Really done."),
    ]

    async def main() -> None:
        async with serving(replies) as server, agent_on(server, workspace) as watch:
            end = await watch.turn("use a helper")
            assert isinstance(end, TurnDone) and end.text == "Really done."
            reports = [r for r in watch.of(GuardReported) if r.problems]
            assert len(reports) == 1
            assert reports[0].check == "names exist" and "summ" in reports[0].problems[0] and reports[0].fed_back
            told = [i for i in watch.agent.state.history.everything() if "A check of your changes" in str(i)]
            assert len(told) == 1

    go(main())


def test_a_failing_test_is_fed_back_and_a_passing_one_is_not(workspace: Path) -> None:
    (workspace / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (workspace / "test_calc.py").write_text("from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n")
    import sys

    (workspace / ".venv/bin").mkdir(parents=True)
    (workspace / ".venv/bin/python").symlink_to(sys.executable)
    replies = [
        patched("    return a + b", "    return a - b"),
        say("Done.", times=1),
        patched("    return a - b", "    return b + a"),
        say("Mended."),
    ]

    async def main() -> None:
        async with serving(replies) as server, agent_on(server, workspace) as watch:
            assert (await watch.turn("change it")).text == "Mended."
            failed = [r for r in watch.of(GuardReported) if r.check == "tests" and r.problems]
            assert len(failed) == 1 and "assert add(1, 2) == 3" in failed[0].problems[0]

    go(main())
