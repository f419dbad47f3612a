"""`fulgur eval polyglot`: Aider's polyglot exercises, in the layout of its repository, with two tries as in Aider.

    DIR/python/exercises/practice/NAME/.docs/instructions.md   the task, preceded by introduction.md
                                       .meta/config.json       which files are the solution and which are the tests
                                       name.py, name_test.py

The agent gets the folder without the tests. When they fail, it sees their output and tries once more.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fulgur.edit.checks.trial import sandboxed
from fulgur.errors import UsageError
from fulgur.eval.agent.attempt import Result, Runner, add_runner_arguments, runner_from, work
from fulgur.eval.projects import environment
from fulgur.sandbox import start
from fulgur.workspace.folders import home

Row = dict[str, Any]
_TEST_SECONDS = 180.0
_SHOWN = 4000  # characters of a failed run's output that the second try sees
# The test command of each language; its tools must be installed.
COMMANDS = {
    "python": "{python} -m pytest -q --tb=short .",
    "go": "go test ./...",
    "rust": "cargo test --offline -- --include-ignored",
}


@dataclass(frozen=True)
class Exercise:
    """One folder of the repository."""

    language: str
    folder: Path
    prompt: str
    solution: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.language}/{self.folder.name}"

    def left_out(self, at: str, names: list[str]) -> list[str]:
        """The files hidden from the agent: the tests, the instructions and the example solution."""
        place = Path(at).relative_to(self.folder)
        return [name for name in names if (place / name).as_posix() in (".meta", ".docs", *self.tests)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this evaluation."""
    parser.add_argument("--exercises", type=Path, required=True, metavar="DIR", help="a clone of polyglot-benchmark")
    parser.add_argument(
        "--languages", default="python", metavar="NAMES", help=f"some of {', '.join(COMMANDS)}, separated by commas"
    )
    parser.add_argument("--names", metavar="NAMES", help="only these exercises, separated by commas")
    add_runner_arguments(parser, 600.0)


def run(args: argparse.Namespace) -> list[Row]:
    """Run all chosen exercises in order."""
    exercises = find(args.exercises, args.languages.split(","), args.names.split(",") if args.names else None)
    first = second = 0
    results = []
    for exercise in exercises:
        result = Result(name=exercise.name, kind="polyglot", about="")
        tries = solve(exercise, runner_from(args), result)
        results.append(result)
        first, second = first + (tries == 1), second + (tries > 0)
        told = {0: "✗", 1: "✓", 2: "✓ on the second try"}[tries]
        print(f"{exercise.name:40}{result.seconds:>8.1f} s  {told}", flush=True)
    count = len(exercises)
    return [
        {"name": "polyglot.pass_rate_1", "value": round(100 * first / count, 1), "unit": "%", "n": count},
        {"name": "polyglot.pass_rate_2", "value": round(100 * second / count, 1), "unit": "%", "n": count},
        {"name": "polyglot.seconds", "value": round(sum(result.seconds for result in results), 1), "unit": "s"},
        {"name": "polyglot.output_tokens", "value": sum(result.output_tokens for result in results), "unit": "tokens"},
    ]


def find(root: Path, languages: list[str], names: list[str] | None) -> list[Exercise]:
    """The exercises of these languages, in order of name."""
    if unknown := [language for language in languages if language not in COMMANDS]:
        raise UsageError(f"exercises in {unknown[0]} cannot be run", hint=f"One of: {', '.join(COMMANDS)}.")
    found = []
    for language in languages:
        for config in sorted((root / language / "exercises/practice").glob("*/.meta/config.json")):
            folder = config.parents[1]
            if names is None or folder.name in names:
                found.append(_read(language, folder, config))
    if not found:
        raise UsageError(
            f"{root} has no exercises for {', '.join(languages)}",
            hint="DIR/LANGUAGE/exercises/practice holds them.",
        )
    return found


def _read(language: str, folder: Path, config: Path) -> Exercise:
    try:
        files = json.loads(config.read_text(encoding="utf-8"))["files"]
        solution, tests = tuple(files["solution"]), tuple(files["test"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{config} is not a valid exercise config: {error!r}") from None
    docs = [folder / ".docs" / name for name in ("introduction.md", "instructions.md", "instructions.append.md")]
    text = "\n\n".join(doc.read_text(encoding="utf-8").strip() for doc in docs if doc.is_file())
    prompt = f"{text}\n\nDo this in {', '.join(solution)}. Keep the names that are there; hidden tests use them."
    return Exercise(language, folder, prompt, solution, tests)


def solve(exercise: Exercise, runner: Runner, result: Result) -> int:
    """The number of the try in which the tests passed; 0: none."""
    with tempfile.TemporaryDirectory(prefix="fulgur-polyglot-", ignore_cleanup_errors=True) as place:
        folder = Path(place).resolve() / "work" / exercise.folder.name
        shutil.copytree(exercise.folder, folder, symlinks=True, ignore=exercise.left_out)
        if exercise.language == "python":
            (folder / ".venv").symlink_to(environment())
        prompt = exercise.prompt
        for number in (1, 2):
            result.problem = work(prompt, folder, runner, result, resume=number == 2)
            failure = judge(exercise, folder, Path(place).resolve() / f"verdict-{number}")
            if not failure:
                result.resolved = True
                return number
            if not result.session:
                return 0
            prompt = f"The tests fail. They are right; mend {', '.join(exercise.solution)}.\n\n{failure[-_SHOWN:]}"
    return 0


def judge(exercise: Exercise, worked: Path, fresh: Path) -> str:
    """The output of the tests in a fresh copy with only the agent's solution; empty when they pass."""
    shutil.copytree(exercise.folder, fresh, symlinks=True)
    for name in exercise.solution:
        given = worked / name
        if given.is_symlink() or not given.is_file():
            return f"{name} is not there"
        (fresh / name).write_bytes(given.read_bytes())
    python = environment() / "bin/python" if exercise.language == "python" else ""
    command = COMMANDS[exercise.language].format(python=python)
    try:
        done = sandboxed(command, fresh, home(), _TEST_SECONDS)
    except start.TimeoutExpired:
        return f"the tests took over {_TEST_SECONDS:g} s"
    output = (done.stdout + done.stderr).decode(errors="replace").replace(str(fresh), ".")
    return "" if done.returncode == 0 else output or f"exit code {done.returncode}"
