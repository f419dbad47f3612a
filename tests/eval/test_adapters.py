"""The agent in other people's benchmarks: their formats as they are, with a scripted model and small folders."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from agent_world import needs_sandbox

from fulgur.bench.scripted_server import ScriptedServer
from fulgur.errors import UsageError
from fulgur.eval.adapters import polyglot, swebench
from fulgur.eval.agent import scripted
from fulgur.eval.agent.attempt import Result, Runner

SOURCE = "def leap(year):\n    return year % 4 == 0\n"
RIGHT = "def leap(year):\n    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)\n"


def patch(*lines: str) -> scripted.Steps:
    text = "\n".join(["*** Begin Patch", *lines, "*** End Patch"])
    return [{"call": "apply_patch", "arguments": {"patch": text}}]


def update(name: str, old: str, new: str) -> scripted.Steps:
    return patch(f"*** Update File: {name}", "@@", *(f"-{line}" for line in old.splitlines()),
                 *(f"+{line}" for line in new.splitlines()))  # fmt: skip


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runner]:
    """One server; a model that solves both, and one that needs a second try."""
    done: scripted.Steps = [{"text": "Done."}]
    news = patch("*** Add File: NEWS.md", "+Leap years are right.", "*** Delete File: old.txt")
    scripts = {
        "issue": scripted.script([update("leap.py", SOURCE, RIGHT), news, done]),
        "exercise": scripted.script([done, update("leap.py", SOURCE, RIGHT), done]),
    }
    with ScriptedServer(tmp_path_factory.mktemp("home"), scripts) as server:
        yield {name: Runner(name, ["features.guards=false"], server.environment, 60.0) for name in scripts}


@needs_sandbox
def test_swebench_predictions_apply_with_git(
    runners: dict[str, Runner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "repos" / "time__leap"
    clone.mkdir(parents=True)

    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(["git", *who, *words], cwd=clone, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    (clone / "leap.py").write_text(SOURCE)
    (clone / "old.txt").write_text("gone without a newline")
    git("add", "-A")
    git("commit", "-qm", "one")
    base = git("rev-parse", "HEAD")
    (clone / "leap.py").write_text(RIGHT)
    git("commit", "-qam", "the answer, which the agent must not see")
    instances = tmp_path / "instances.jsonl"
    line = {"instance_id": "time__leap-1", "repo": "time/leap", "base_commit": base, "problem_statement": "1900",
            "hints_text": "", "FAIL_TO_PASS": "[]"}  # fmt: skip
    instances.write_text(json.dumps(line) + "\n")
    predictions = tmp_path / "predictions.jsonl"
    predictions.write_text('{"instance_id": "time__leap-1", "model_na')  # cut by a kill
    args = argparse.Namespace(
        instances=instances,
        repos=tmp_path / "repos",
        predictions=predictions,
        model="m",
        name=None,
        timeout=60.0,
        config=[],
    )
    monkeypatch.setattr(swebench, "runner_from", lambda args: runners["issue"])
    rows = {row["name"]: row["value"] for row in swebench.run(args)}
    assert rows["swebench.predictions"] == 1 and rows["swebench.empty"] == 0 and rows["swebench.output_tokens"]
    (found,) = [json.loads(text) for text in predictions.read_text().splitlines()]
    assert set(found) == {"instance_id", "model_name_or_path", "model_patch"}
    assert found["instance_id"] == "time__leap-1" and found["model_name_or_path"] == "fulgur+m"
    git("checkout", "-q", base)
    (tmp_path / "p.diff").write_text(found["model_patch"])
    git("apply", str(tmp_path / "p.diff"))
    assert (clone / "leap.py").read_text() == RIGHT and not (clone / "old.txt").exists()
    assert (clone / "NEWS.md").read_text() == "Leap years are right.\n"
    assert "worktree" not in git("worktree", "list", "--porcelain").partition("\n\n")[2]  # none is left behind
    before = predictions.read_bytes()
    swebench.run(args)
    assert predictions.read_bytes() == before
    with pytest.raises(UsageError, match="not a clone"):
        swebench.predict(swebench.Instance("x", "no/where", base, ""), tmp_path / "repos", runners["issue"],
                         Result(name="", kind="", about=""))  # fmt: skip


@needs_sandbox
def test_a_polyglot_exercise_is_solved_in_the_second_try(
    runners: dict[str, Runner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "python/exercises/practice/leap"
    for name, text in {
        ".docs/introduction.md": "# Leap\nYears.",
        ".docs/instructions.md": "Say whether a year is a leap year.",
        ".meta/config.json": json.dumps({"files": {"solution": ["leap.py"], "test": ["leap_test.py"], "example": []}}),
        ".meta/example.py": RIGHT,
        "pytest.ini": "[pytest]\naddopts = --disable-plugin-autoload\n",  # they take seconds to load
        "leap.py": SOURCE,
        "leap_test.py": "from leap import leap\n\n\ndef test_1900():\n    assert not leap(1900)\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(polyglot, "environment", lambda: Path(sys.prefix))
    (exercise,) = polyglot.find(tmp_path, ["python"], None)
    assert exercise.name == "python/leap" and "# Leap\nYears.\n\nSay whether" in exercise.prompt
    seen = []
    work = polyglot.work

    def watched(prompt: str, place: Path, *rest: object, **more: object) -> str:
        seen.append((prompt, sorted(path.name for path in place.iterdir() if path.name != ".venv")))
        return work(prompt, place, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(polyglot, "work", watched)
    result = Result(name="", kind="", about="")
    assert polyglot.solve(exercise, runners["exercise"], result) == 2
    assert [names for _, names in seen] == [["leap.py", "pytest.ini"]] * 2
    assert "assert not leap(1900)" in seen[1][0] and "assert" not in seen[0][0]
    assert result.resolved and result.files == 1
    with pytest.raises(UsageError, match="cobol"):
        polyglot.find(tmp_path, ["cobol"], None)
    with pytest.raises(UsageError, match="no exercises"):
        polyglot.find(tmp_path, ["go"], None)
