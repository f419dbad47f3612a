"""`fulgur eval edits`: instructions in developers' own words, carried out in real projects, each result checked.

Every instruction is handled as by `fulgur edit`. A proposed edit is written into the project and judged (`judge.py`);
if the editor gave it a check mark, the project must still import and pass its tests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fulgur.errors import FulgurError, UsageError
from fulgur.eval.edits.instructions import Instruction, read_instructions
from fulgur.eval.edits.judge import misleading, problem_of
from fulgur.eval.edits.marks import Marks
from fulgur.eval.projects import CHOOSE, CONFIRM, FRESH_PACKAGES, PACKAGES, Project, build

if TYPE_CHECKING:
    from fulgur.edit.editor import Proposal, Refusal, Task
    from fulgur.edit.model import Answer, Model

    Answerer = Callable[[Task], tuple[Proposal | Refusal, Answer | None]]

Row = dict[str, Any]
RIGHT, WRONG, REFUSED = "right", "wrong_shown", "refused"
BARS = {"right": "≥ 45", "wrong_shown": "≤ 2", "wrong_of_shown": "≤ 4", "check_mark_holds": "= 100"}


@dataclass
class Result:
    """One instruction and its result; `problem` says what is wrong with the edit, or misleading in the refusal."""

    name: str
    part: str
    at: str
    say: str
    answerer: str
    verdict: str
    possible: bool
    told: str = ""  # what the user sees: how the instruction was read, or the refusal
    problem: str = ""
    marked: bool = False  # it got a check mark
    trial: str = ""  # what the editor says about the tests
    holds: bool = True  # the project imports and passes its tests
    said: str = ""
    probability: float | None = None
    seconds: float = 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", metavar="NAMES", help=f"only these packages, separated by commas: {', '.join(PACKAGES)}"
    )
    parser.add_argument("--fresh", action="store_true", help=f"60 other instructions: {', '.join(FRESH_PACKAGES)}")
    parser.add_argument("--model", metavar="MODEL", help="an embedded model by name, or a folder")
    parser.add_argument("--answers", type=Path, metavar="FILE", help="write every instruction and its result")
    parser.add_argument(
        "--refactorings",
        action="store_true",
        help="60 renames, 30 each of the other refactorings",
    )
    parser.add_argument("--seed", type=int, default=1, help="the seed that picks them (default 1)")
    parser.add_argument("--no-tests", action="store_true", help="judge only the edits, without the row on check marks")


def run(args: argparse.Namespace) -> list[Row]:
    from fulgur.edit.editor import plan
    from fulgur.edit.model import Model

    packages = FRESH_PACKAGES if args.fresh else PACKAGES
    names = args.only.split(",") if args.only else list(packages)
    if unknown := set(names) - set(packages):
        raise UsageError(f"there is no package {sorted(unknown)[0]}", hint=f"One of: {', '.join(packages)}.")
    if args.refactorings:
        from fulgur.eval.edits.refactorings import run_all

        with tempfile.TemporaryDirectory(prefix="fulgur-edits-") as place:
            projects = [build(packages[name], Path(place).resolve()) for name in names]
            return run_all(projects, args.seed)
    model = Model(args.model)
    answerers: dict[str, Answerer] = {
        "": lambda task: plan(task, model), "model": _model_alone(model), "codemod": codemod()
    }  # fmt: skip
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="fulgur-edits-") as place:
        for name in names:
            project = build(packages[name], Path(place).resolve())
            results += work(project, read_instructions(project.package), answerers, tests=not args.no_tests)
            print(_line(name, [found for found in results if found.name.startswith(f"{name} ")]), flush=True)
    if args.answers:
        lines = [json.dumps(asdict(result), ensure_ascii=False) + "\n" for result in results]
        args.answers.write_text("".join(lines), encoding="utf-8")
    rows = [row for answerer in answerers for row in rows_of(answerer, results, tests=not args.no_tests)]
    show(rows)
    return rows


def work(
    project: Project, instructions: Iterable[Instruction], answerers: dict[str, Answerer], *, tests: bool
) -> list[Result]:
    """Carry out all instructions for one project, which is restored after each."""
    if broken := project.imports():
        raise FulgurError(f"{project.package.stem} cannot be imported as it is: {broken}")
    marks = Marks(project) if tests and project.package.tests else None
    try:
        with contextlib.chdir(project.folder):
            return [
                attempt(project, instruction, label, answerer, marks if not label else None)
                for instruction in instructions
                for label, answerer in answerers.items()
            ]
    finally:
        if marks is not None:
            marks.close()


def attempt(project: Project, instruction: Instruction, label: str, answerer: Answerer, marks: Marks | None) -> Result:
    """Carry out one instruction as `fulgur edit` does; `marks` None: without the project's tests."""
    from fulgur.edit.editor import Refusal, locate
    from fulgur.edit.region import parse_target

    package = project.package
    result = Result(
        instruction.name, package.part, instruction.at, instruction.say, label, REFUSED, instruction.possible
    )
    target = parse_target(instruction.at, project.folder)
    began = time.perf_counter()
    try:
        proposal, answer = answerer(locate(target, instruction.say))
    except FulgurError as error:
        result.told = " ".join(filter(None, (error.message, error.hint)))
    else:
        result.told = proposal.reason if isinstance(proposal, Refusal) else proposal.understood
        if answer is not None:
            result.said, result.probability = answer.text, answer.probability
        if not isinstance(proposal, Refusal):
            result.seconds = time.perf_counter() - began
            _judge(project, instruction, proposal, result, marks)
            return result
    result.seconds = time.perf_counter() - began
    text = target.path.read_text(encoding="utf-8") if target.path.is_file() else ""
    result.problem = misleading(instruction, result.told, text)
    return result


def _judge(project: Project, instruction: Instruction, proposal: Proposal, result: Result, marks: Marks | None) -> None:
    """Write the edit, judge the project, and restore everything."""
    changes = proposal.changes()
    if marks is not None:
        result.marked, result.trial = marks.of(proposal)
    try:
        for change in changes:
            change.path.write_bytes(change.after or b"")
        texts = [{c.path.resolve(): data.decode() for c in changes if (data := side(c)) is not None} for side in _SIDES]
        result.problem = problem_of(instruction, project, texts[0], texts[1])
        result.verdict = WRONG if result.problem else RIGHT
        if marks is not None and result.marked:
            result.holds = not marks.broken()
    finally:
        for change in changes:
            if change.before is None:
                change.path.unlink()
            else:
                change.path.write_bytes(change.before)


_SIDES = (lambda change: change.before, lambda change: change.after)


def rows_of(answerer: str, results: list[Result], *, tests: bool) -> list[Row]:
    """The rows of one answerer: for all instructions together, and for each part."""
    mine = [result for result in results if result.answerer == answerer]
    label = f".{answerer}" if answerer else ""
    found = []
    for part, some in (("", mine), *((f".{part}", [r for r in mine if r.part == part]) for part in (CHOOSE, CONFIRM))):
        if not some:
            continue
        counts = Counter(result.verdict for result in some)
        shown = counts[RIGHT] + counts[WRONG]
        values = {verdict: _share(counts[verdict], len(some)) for verdict in (RIGHT, WRONG, REFUSED)}
        values["misleading"] = _share(sum(r.verdict == REFUSED and bool(r.problem) for r in some), len(some))
        values["wrong_of_shown"] = _share(counts[WRONG], shown)
        values["impossible_refused"] = _share(
            sum(r.verdict == REFUSED for r in some if not r.possible), sum(not r.possible for r in some)
        )
        if tests and not answerer:
            marked = [result for result in some if result.marked]
            values["check_mark"] = _share(len(marked), shown)
            values["check_mark_holds"] = _share(sum(result.holds for result in marked), len(marked))
        for name, value in values.items():
            found.append({"name": f"edits.{name}{part}{label}", "value": value, "unit": "%", "n": len(some)})
    return found


def _share(some: int, of: int) -> float:
    return round(100 * some / of, 2) if of else 0.0


def _line(name: str, results: list[Result]) -> str:
    counts = Counter((result.answerer, result.verdict) for result in results)
    cells = []
    for who in ("", "model", "codemod"):
        right, wrong, refused = (counts[(who, verdict)] for verdict in (RIGHT, WRONG, REFUSED))
        cells.append(f"{f'{who}: ' if who else ''}{right} right, {wrong} wrong, {refused} refused")
    return f"{name:12}{'   '.join(cells)}"


def show(rows: list[Row]) -> None:
    """Print all rows of the shipped editor next to the baselines."""
    values = {row["name"]: row["value"] for row in rows}
    print(f"\n{'':22}{'all':>8}{CHOOSE:>10}{CONFIRM:>10}{'model':>10}{'codemod':>10}{'bar':>8}")
    for name in (
        RIGHT,
        WRONG,
        "wrong_of_shown",
        REFUSED,
        "misleading",
        "impossible_refused",
        "check_mark",
        "check_mark_holds",
    ):
        cells = [values.get(f"edits.{name}{end}") for end in ("", f".{CHOOSE}", f".{CONFIRM}", ".model", ".codemod")]
        told = ["-" if cell is None else f"{cell:.1f}" for cell in cells]
        print(f"{name:22}{told[0]:>8}{told[1]:>10}{told[2]:>10}{told[3]:>10}{told[4]:>10}{BARS.get(name, ''):>8}")


def codemod() -> Answerer:
    """The baseline: regular expressions parse the instruction, the editor's refactorings and checks do the rest."""
    from fulgur.edit.editor import propose
    from fulgur.eval.codemod import Codemod
    from fulgur.eval.tasks import EditExample
    from fulgur.text.edit_format import Call, NoEdit, parse_answer

    def answer(task: Task) -> tuple[Proposal | Refusal, None]:
        region = task.region
        example = EditExample(
            "", task.document.name, region.above, region.text, region.below, (), task.instruction, NoEdit(), "",
            heldout_phrasing=False, heldout_op=False,
        )  # fmt: skip
        said = Codemod().edit(example)
        call = parse_answer(said)
        return propose(task, call if isinstance(call, Call) else said), None

    return answer


def _model_alone(model: Model) -> Answerer:
    """Query the model every time, even where the editor reads the instruction itself."""
    from fulgur.edit.editor import propose

    def answer(task: Task) -> tuple[Proposal | Refusal, Answer]:
        said = model.rewrite(task.item())
        return propose(task, said.text, probability=said.probability), said

    return answer
