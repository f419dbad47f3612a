"""The evaluation of the agent: mistakes that are real, a harness that cannot be fooled, a run that survives a kill."""

import argparse
import ast
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from agent_world import needs_sandbox

from fulgur.errors import FulgurError
from fulgur.eval import agent
from fulgur.eval.agent import scripted
from fulgur.eval.agent.attempt import Result, attempt
from fulgur.eval.agent.mutate import KINDS, mutated, mutations
from fulgur.eval.agent.progress import Progress
from fulgur.eval.agent.prove import prove
from fulgur.eval.agent.repairs import as_task
from fulgur.eval.agent.report import rows_of
from fulgur.eval.agent.tasks import Task, lay_out, must_run_in_sandbox, verdict
from fulgur.eval.agent.wanted import FOLDER, Wanted
from fulgur.eval.projects import Package, Project

SAMPLE = """
import os, sys
from pathlib import Path

async def load(path, strict=True):
    text = await read(path, "é" if strict and path else "")
    if len(text) > 3:
        raise ValueError(text)
    return join(text[1:], text[0])
"""

SHOP = "def total(prices, tax=2):\n    return sum(prices) + tax\n\n\ndef unseen(a, b):\n    return a < b\n"
TESTS = "from shop import total\n\n\ndef test_total():\n    assert total([1, 2]) == 5\n"


@needs_sandbox
def test_a_python_that_the_sandbox_hides_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = tmp_path / "home" / "python"
    hidden.parent.mkdir()
    hidden.symlink_to(sys.executable)
    monkeypatch.setenv("FULGUR_HOME", str(hidden.parent))
    must_run_in_sandbox(Path(sys.executable))
    with pytest.raises(FulgurError, match=f"the sandbox hides {hidden}"):
        must_run_in_sandbox(hidden)


def test_every_kind_of_mistake_is_found_and_parses() -> None:
    found = mutations("a.py", SAMPLE)
    assert {made.kind for made in found} == set(KINDS)
    for made in found:
        text = mutated(SAMPLE, [made])
        assert text != SAMPLE
        ast.parse(text)
    assert found == mutations("a.py", SAMPLE)
    dropped = [mutated(SAMPLE, [made]) for made in found if made.kind == "dropped return or await"]
    assert any("text = read(" in text for text in dropped)
    assert any("\n    join(text[1:], text[0])" in text for text in dropped)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """A package of one file with a proven mistake in it."""
    place = tmp_path_factory.mktemp("eval")
    folder = place / "shop"
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP)
    (folder / "test_shop.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --disable-plugin-autoload\n")  # they take seconds to load
    (folder / ".venv").symlink_to(sys.prefix)
    project = Project(Package("shop", "1", "", "", "shop", "test_shop.py"), folder)
    proofs = prove({"shop": project}, 1, 1, place)
    return as_task("shop-1", project, proofs.repairs[0], proofs.passing["shop"])


@needs_sandbox
def test_a_mistake_that_no_test_sees_is_not_used(task: Task) -> None:
    # The first kind, a flipped comparison, is only in `unseen`; the next one that counts is in `total`.
    assert "flipped comparison" not in task.about
    assert task.start["shop.py"].endswith(SHOP.partition("\n\n")[2]) and task.start["shop.py"] != SHOP
    assert task.expected == {"test_shop.py::test_total"}
    assert "- test_shop.py::test_total" in task.prompt


@needs_sandbox
def test_the_scripted_model_resolves_it_the_idle_one_and_a_cheat_do_not(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cheat(task: Task) -> list[scripted.Steps]:
        files = {
            "test_shop.py": "def test_total():\n    pass\n",
            "conftest.py": "collect_ignore = ['test_shop.py']\n",
            "pytest.py": "print('PASSED test_shop.py::test_total')\n",
        }
        patch = "".join(
            f"*** Add File: {name}\n+" + text[:-1].replace("\n", "\n+") + "\n" for name, text in files.items()
        )
        call = {"call": "apply_patch", "arguments": {"patch": f"*** Begin Patch\n{patch}*** End Patch"}}
        wrong = {"call": "read", "arguments": {"path": "nowhere.py"}}
        return [[wrong], [call], [{"text": "All tests pass."}]]

    answers = {"solve": scripted.solve, "idle": scripted.idle, "cheat": cheat}
    monkeypatch.setattr(scripted, "MODELS", {"scripted": lambda task: answers[task.name](task)})
    tasks = [replace(task, name=name) for name in answers]
    args = argparse.Namespace(model="scripted", config=["features.guards=false"], timeout=60.0)
    with agent.runners(tasks, args) as runner_of:
        solved, idle, cheated = (attempt(task, runner_of[task.name]) for task in tasks)
        with pytest.raises(FulgurError, match=r"did not start.*nowhere"):  # not a task that is not resolved
            attempt(task, replace(runner_of["idle"], config=["model_provider=nowhere"]))
    assert solved.resolved and solved.ended == "done" and solved.calls == 4 and solved.files == 1
    assert solved.tool_errors == 0  # tests that fail are none
    assert solved.models == ["solve"] and solved.output_tokens and solved.cost
    assert not idle.resolved and idle.calls == 0 and "1 of 1 tests" in idle.problem
    assert not cheated.resolved and cheated.files == 3 and cheated.tool_errors == 1
    assert "1 of 1 tests" in cheated.problem


@needs_sandbox
def test_a_source_that_ends_pytest_or_leads_elsewhere_is_not_resolved(task: Task, tmp_path: Path) -> None:
    worked = tmp_path / "worked"
    lay_out(task, worked)
    (worked / "shop.py").write_text("import os\nos._exit(0)\n")
    assert "1 of 1 tests do not pass" in verdict(task, worked, tmp_path)
    (worked / "shop.py").unlink()
    (worked / "shop.py").symlink_to(task.origin / "shop.py")
    (tmp_path / "again").mkdir()
    assert verdict(task, worked, tmp_path / "again")


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    asked = {"model": "m", "seed": 1}
    first = Progress(tmp_path / "out.json", asked)
    with first:
        first.add(Result(name="a", kind="repair", about="", resolved=True))
        first.add(Result(name="b", kind="repair", about=""))
    assert first.file is not None
    first.file.write_bytes(first.file.read_bytes()[:-20])  # killed in the middle of the second line
    with pytest.raises(FulgurError, match="other settings"):
        Progress(tmp_path / "out.json", {**asked, "seed": 2}).__enter__()
    with Progress(tmp_path / "out.json", asked) as second:
        assert list(second.results) == ["a"]
        second.add(Result(name="b", kind="repair", about="", seconds=2))
    with Progress(tmp_path / "out.json", asked) as third:
        assert third.results["b"].seconds == 2 and third.results["a"].resolved
        third.finish()
    assert not list(tmp_path.iterdir())


def test_rows_add_up_and_tell_each_task() -> None:
    results = [
        Result(
            name="a", kind="repair", about="x", resolved=True, seconds=2, input_tokens=10, output_tokens=1, cost=0.5
        ),
        Result(name="b", kind="game", about="y", seconds=4, input_tokens=5, tool_errors=3, calls=4, cost=0.25),
    ]
    rows = {row["name"]: row for row in rows_of(results)}
    assert rows["agent.resolved"]["value"] == 50 and rows["agent.resolved.repair"]["value"] == 100
    assert rows["agent.seconds"]["value"] == 6 and rows["agent.cost"]["value"] == 0.75
    assert rows["agent.input_tokens"]["value"] == 15 and rows["agent.tool_errors"]["value"] == 3
    assert rows["agent.task.b"]["value"] == 0 and rows["agent.task.b"]["seconds"] == 4
    unknown = [msgspec.structs.replace(results[0], cost=None), results[1]]
    assert "agent.cost" not in {row["name"] for row in rows_of(unknown)}


def test_what_is_wanted_has_tests_and_a_solution() -> None:
    found = {path.stem: msgspec.convert(tomllib.loads(path.read_text()), Wanted) for path in FOLDER.glob("*.toml")}
    assert "snake" in found
    for wanted in found.values():
        assert wanted.edit or wanted.solution
        for text in (*wanted.hidden.values(), *wanted.solution.values()):
            ast.parse(text)
        assert all("def test_" in text for text in wanted.hidden.values())
