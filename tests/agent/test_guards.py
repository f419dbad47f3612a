"""Guards against fast hallucination: what an edit introduces must parse, exist and pass its tests."""

import sys
from pathlib import Path

import pytest
from agent_world import agent_on, call, say, serving

from fulgur.edit.checks.covering import covering_tests
from fulgur.edit.checks.imports import unknown_imports
from fulgur.edit.checks.members.introduced import added_lines
from fulgur.edit.checks.syntax import syntax_problems
from fulgur.protocol.agent import GuardReported, GuardStarted, TurnDone, Warned


def everything(source: str) -> set[int]:
    return set(range(1, source.count("\n") + 2))


@pytest.mark.parametrize(
    ("name", "source", "line"),
    [
        ("a.py", "def f(:\n", 1),
        ("a.py", "x = 1\nf(a=1, a=2)\n", 2),
        ("a.py", "x = 1\nreturn x\n", 2),
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
    assert added_lines("a\nb\nc\n", "a\nB\nC\nc\nd\n") == {2, 3, 5}


EXPORTS = """
export const a = 1, b = 2;
export const {c, d: e, ...f} = a;
export function g() {}
export class H {}
const inner = 3;
export { inner as outer };
export default inner;
export * from './more';
export * as names from './more';
"""


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("import { a, b, c, e, f, g, H, outer, names, fromMore } from './lib';", None),
        ("import whole, { a as z } from './lib.js';", None),
        ("import * as lib from './lib';\nimport './lib';", None),
        ("import { anything } from './common';", None),
        ("import { anything } from 'package';\nimport styles from './a.css';", None),
        ("import { gg } from './lib';", "./lib does not export gg (nearest: g)"),
        ("import { inner } from './lib';", "./lib does not export inner"),
        ("import { d } from './lib';", "./lib does not export d"),
        ("import { a, outr } from './lib';", "./lib does not export outr (nearest: outer)"),
        ("import more from './more';", "./more does not export default"),
        ("import { T, U } from './types';", "./types does not export U"),
        ("import { a } from './libb';", "there is no file ./libb"),
    ],
)
def test_imports_of_javascript(source: str, wanted: str | None, workspace: Path) -> None:
    (workspace / "lib.ts").write_text(EXPORTS)
    (workspace / "more.js").write_text("export let fromMore = 1;\n")
    (workspace / "common.js").write_text("module.exports = { x: 1 };\n")
    (workspace / "types.d.ts").write_text("export interface T { a: number }\nexport declare function f(): void;\n")
    found = unknown_imports(source, workspace / "main.ts", everything(source))
    assert [problem.text for problem in found] == ([wanted] if wanted else [])
    assert unknown_imports(source, workspace / "main.ts", set()) == []


def test_tests_that_cover_a_file(workspace: Path) -> None:
    """Whatever way a test reaches the module; the nearest come first."""
    some = "def test_it(): ...\n"
    for name, text in {
        "src/pkg/__init__.py": "from .api import (\n    run,\n)\n",
        "src/pkg/api.py": "from . import core\n",
        "src/pkg/core.py": "def f(): ...\n",
        "src/pkg/apart.py": "import json\n",
        "src/other/__init__.py": "",
        "tests/test_core.py": some,
        "tests/test_direct.py": f"from pkg.core import f\n{some}",
        "tests/test_package.py": f"import pkg\n{some}",
        "tests/test_program.py": f"run([python, '-m', 'pkg'])\n{some}",
        "tests/test_other.py": f"import other\n{some}",
        "tests/sub/conftest.py": "from pkg import api\n",
        "tests/sub/test_fixture.py": some,
        "node_modules/test_core.py": some,
    }.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text)
    near = ["tests/test_core.py", "tests/test_direct.py"]
    far = ["tests/sub/test_fixture.py", "tests/test_package.py", "tests/test_program.py"]
    assert covering_tests(workspace, ["src/pkg/core.py"]) == near + far
    assert covering_tests(workspace, ["src/other/__init__.py"]) == ["tests/test_other.py"]
    assert covering_tests(workspace, ["src/pkg/apart.py"]) == []
    assert covering_tests(workspace, ["README.md"]) == []


def patched(old: str, new: str) -> dict:  # type: ignore[type-arg]
    patch = f"*** Begin Patch\n*** Update File: calc.py\n@@\n-{old}\n+{new}\n*** End Patch"
    return call("apply_patch", {"patch": patch}, times=1)


async def test_problems_are_fed_back_once(workspace: Path) -> None:
    (workspace / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    replies = [
        patched("    return a + b", "    return summ(a, b)"),
        say("Done.", times=1),
        patched("    return summ(a, b)", "    return sumn(a, b)"),
        say("Really done."),
    ]

    async with serving(replies) as server, agent_on(server, workspace) as watch:
        end = await watch.turn("use a helper")
        assert isinstance(end, TurnDone) and end.text == "Really done."
        reports = [r for r in watch.of(GuardReported) if r.problems]
        assert len(reports) == 1
        assert reports[0].check == "names exist" and "summ" in reports[0].problems[0] and reports[0].fed_back
        told = [i for i in watch.agent.state.history.everything() if "A check of your changes" in str(i)]
        assert len(told) == 1


async def test_a_failing_test_is_fed_back_and_a_passing_one_is_not(workspace: Path, environment: None) -> None:
    (workspace / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (workspace / "test_calc.py").write_text("from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n")
    replies = [
        patched("    return a + b", "    return a - b"),
        say("Done.", times=1),
        patched("    return a - b", "    return b + a"),
        say("Mended."),
    ]

    async with serving(replies) as server, agent_on(server, workspace) as watch:
        assert (await watch.turn("change it")).text == "Mended."
        failed = [r for r in watch.of(GuardReported) if r.check == "tests" and r.problems]
        assert len(failed) == 1 and "assert add(1, 2) == 3" in failed[0].problems[0]


async def test_every_change_of_a_turn_is_checked(workspace: Path) -> None:
    (workspace / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    replies = [
        patched("    return a + b", "    return a.whole + 'x'.uper()"),
        patched("def add(a, b):", "def add(a: int, b: int) -> int:"),
        say("Done.", times=1),
        say("It is right."),
    ]

    async with serving(replies) as server, agent_on(server, workspace) as watch:
        await watch.turn("change it")
        problems = [p for r in watch.of(GuardReported) for p in r.problems]
        assert any("'x' has no attribute uper (nearest: upper)" in problem for problem in problems)


@pytest.fixture
def environment(workspace: Path) -> None:
    """A project's own Python, with pytest in it."""
    (workspace / ".venv/bin").mkdir(parents=True)
    (workspace / ".venv/bin/python").symlink_to(sys.executable)


async def test_a_test_that_failed_before_is_not_the_edit_s_fault(workspace: Path, environment: None) -> None:
    (workspace / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (workspace / "test_calc.py").write_text("from calc import add\n\n\ndef test_old():\n    assert add(1, 1) == 3\n")
    replies = [patched("    return a + b", "    return b + a"), say("Done.")]
    async with serving(replies) as server, agent_on(server, workspace) as watch:
        assert (await watch.turn("turn it round")).text == "Done."
        assert [r.problems for r in watch.of(GuardReported) if r.check == "tests"] == [()]
        assert [event.check for event in watch.of(GuardStarted)] == ["names exist", "tests"]  # for the screen
        assert any("1 of these tests failed before the edit too" in w.message for w in watch.of(Warned))


async def test_an_edit_that_keeps_pytest_from_starting_is_told(workspace: Path, environment: None) -> None:
    (workspace / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (workspace / "conftest.py").write_text("from calc import add\n")
    (workspace / "test_calc.py").write_text("import calc\n\n\ndef test_add():\n    assert calc\n")
    replies = [patched("def add(a, b):", "def plus(a, b):"), say("Done.", times=1), say("It stays.")]
    async with serving(replies) as server, agent_on(server, workspace) as watch:
        await watch.turn("change it")
        [problem] = [p for r in watch.of(GuardReported) if r.check == "tests" for p in r.problems][:1]
        assert "pytest exited with 4" in problem and "cannot import name 'add'" in problem


async def test_tests_that_cannot_be_run_are_said(workspace: Path) -> None:
    (workspace / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (workspace / "test_calc.py").write_text("import calc\n")
    bare = workspace / ".venv/bin/python"
    bare.parent.mkdir(parents=True)
    bare.write_text("#!/bin/sh\necho 'No module named pytest' >&2\nexit 1\n")
    bare.chmod(0o755)
    replies = [patched("    return a + b", "    return b + a"), say("Done.")]
    async with serving(replies) as server, agent_on(server, workspace) as watch:
        await watch.turn("change it")
        [report] = [r for r in watch.of(GuardReported) if r.check == "tests"]
        assert report.unchecked == "tests not run: there is no pytest in the project's environment"
