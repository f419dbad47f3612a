"""Mistakes in real packages, drawn by a seed and proven: the tests pass without them, and each makes one fail."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fulgur.edit.checks.tests import put
from fulgur.errors import FulgurError
from fulgur.eval.agent.mutate import KINDS, Mutation, mutated, mutations
from fulgur.eval.agent.tasks import passed, run_tests
from fulgur.eval.projects import Project

_TWO_EVERY = 5  # each fifth task has two mistakes
_TRIES = 8  # mistakes of a kind that are tried in a package before the next kind


class Proven(msgspec.Struct):
    """Mistakes in a package, each of which makes a test fail, and the tests that fail with all of them."""

    package: str
    made: list[Mutation]
    failing: list[str]


class Proofs(msgspec.Struct):
    """All repairs of a seed; `passing` are the tests of each package as it is."""

    passing: dict[str, list[str]] = {}
    repairs: list[Proven] = []


def prove(projects: dict[str, Project], seed: int, count: int, place: Path) -> Proofs:
    """Draw mistakes until there are enough that the tests notice."""
    proofs = Proofs()
    pools = {}
    for name, project in projects.items():
        run = run_tests(project.folder, (project.package.tests,))
        if not run.clean:
            raise FulgurError(f"the tests of {project.package.stem} do not pass as it is: {run.missing or run.output}")
        proofs.passing[name] = sorted(passed(run))
        pools[name] = _Pool(project, frozenset(proofs.passing[name]), random.Random(f"{seed} {name}"), place)
    names, kinds = list(projects), list(KINDS)
    for number in range(count):
        name = names[number % len(names)]
        # Another kind each time, and for a package another one in each round.
        first = (number + 3 * (number // len(names))) % len(kinds)
        wanted = 2 if number % _TWO_EVERY == _TWO_EVERY - 1 else 1
        repair = pools[name].draw(kinds[first:] + kinds[:first], wanted)
        proofs.repairs.append(repair)
        print(f"  {number + 1:>2}  {name}: {', '.join(made.kind for made in repair.made)}", flush=True)
    return proofs


class _Pool:
    """The mistakes of one package that are not used yet."""

    def __init__(self, project: Project, passing: frozenset[str], order: random.Random, place: Path) -> None:
        self._project, self._passing, self._place = project, passing, place
        self._texts = {file: (project.folder / file).read_text(encoding="utf-8") for file in _sources(project)}
        found = [made for file, text in self._texts.items() for made in mutations(file, text)]
        order.shuffle(found)
        self._left = {kind: [made for made in found if made.kind == kind] for kind in KINDS}

    def draw(self, kinds: list[str], count: int) -> Proven:
        """So many mistakes, of these kinds in this order; each alone makes a test fail."""
        chosen: list[Mutation] = []
        for made in self._proven(kinds):
            if len(chosen) == 1 and len(self._texts) > 1 and made.file == chosen[0].file and made.kind != kinds[-1]:
                continue  # rather in another file
            if any(made.file == other.file and made.start < other.end and other.start < made.end for other in chosen):
                continue
            chosen.append(made)
            if len(chosen) == count:
                return Proven(self._project.package.name, chosen, sorted(self._failing(chosen)))
        raise FulgurError(f"too few mistakes in {self._project.package.stem} are noticed by its tests")

    def _proven(self, kinds: list[str]) -> Iterator[Mutation]:
        for kind in kinds:
            left, self._left[kind] = self._left[kind][:_TRIES], self._left[kind][_TRIES:]
            while left:
                made = left.pop(0)
                if self._failing([made]):
                    self._left[kind] = left + self._left[kind]
                    yield made
                    left = []

    def _failing(self, made: list[Mutation]) -> frozenset[str]:
        """The tests that fail with these mistakes; none when they cannot be run, or run for ever."""
        folder = self._place / "proof"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._project.folder, folder, symlinks=True)
        put({file: text.encode() for file, text in with_mistakes(self._texts, made).items()}, folder)
        run = run_tests(folder, (self._project.package.tests,))
        shutil.rmtree(folder)
        return frozenset() if run.missing or run.broken else run.failed


def module_path(project: Project) -> str:
    """Where the package's own code is, as a path in its folder."""
    path = Path(project.package.source) / project.package.module
    return (path if (project.folder / path).is_dir() else path.with_suffix(".py")).as_posix()


def _sources(project: Project) -> list[str]:
    """The files of the package that are not tests."""
    top = project.folder / module_path(project)
    found = [path.relative_to(project.folder).as_posix() for path in ([top] if top.is_file() else top.rglob("*.py"))]
    return sorted(name for name in found if "/tests/" not in name)


def with_mistakes(texts: dict[str, str], made: list[Mutation]) -> dict[str, str]:
    """The changed files with the mistakes in them."""
    files = {one.file for one in made}
    return {file: mutated(texts[file], [one for one in made if one.file == file]) for file in sorted(files)}
