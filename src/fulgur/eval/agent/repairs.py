"""Repair tasks: packages with proven bugs. The proofs are kept in the cache folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from fulgur.eval.agent import mutate, prove
from fulgur.eval.agent.prove import Proofs, Proven, module_path, with_mistakes
from fulgur.eval.agent.tasks import Task
from fulgur.eval.projects import Project, cache_folder

REPAIRS = 30
_SHOWN = 5  # failing tests that the prompt names


def repairs(projects: dict[str, Project], seed: int, place: Path) -> list[Task]:
    """The tasks of a seed, alternating between the packages."""
    kept = cache_folder() / f"repairs-{seed}-{_digest(projects)}.json"
    try:
        proofs = msgspec.json.decode(kept.read_bytes(), type=Proofs)
    except (OSError, msgspec.DecodeError):
        print(f"Proving {REPAIRS} repairs (a few minutes, once for each seed) …", flush=True)
        proofs = prove.prove(projects, seed, REPAIRS, place)
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(proofs))
        part.replace(kept)
    numbers = dict.fromkeys(projects, 0)
    found = []
    for repair in proofs.repairs:
        numbers[repair.package] += 1
        name = f"{repair.package}-{numbers[repair.package]}"
        found.append(as_task(name, projects[repair.package], repair, proofs.passing[repair.package]))
    return found


def as_task(name: str, project: Project, repair: Proven, passing: list[str]) -> Task:
    """The task for a package with bugs."""
    package = project.package
    texts = {file: (project.folder / file).read_text(encoding="utf-8") for file in {made.file for made in repair.made}}
    paths = "PYTHONPATH=src " if package.source != "." else ""
    shown = "".join(f"\n- {test}" for test in repair.failing[:_SHOWN])
    more = len(repair.failing) - _SHOWN
    prompt = (
        "Some tests of this project fail. Find what is wrong in the source and mend it. The tests are right: leave "
        f"them as they are.\n\nThey run with `{paths}.venv/bin/python -m pytest -q {package.tests}`. "
        f"Failing now:{shown}" + (f"\n- and {more} more" if more > 0 else "")
    )
    return Task(
        name, "repair", ", ".join(f"{made.kind} in {made.file}:{made.line}" for made in repair.made), prompt,
        project.folder, (package.tests,), module_path(project), frozenset(passing),
        start=with_mistakes(texts, repair.made), solution=texts,
    )  # fmt: skip


def _digest(projects: dict[str, Project]) -> str:
    """A key that changes with the packages and with the code that chooses the bugs."""
    code = [Path(module.__file__ or "").read_bytes() for module in (mutate, prove)]
    hashes = [project.package.sha256.encode() for project in projects.values()]
    return hashlib.sha256(b"".join(code + hashes)).hexdigest()[:12]
