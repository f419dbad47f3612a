"""Realistic edits in packages that no model here was trained on: three kinds of tasks, created at run time.

own words   the instructions of `fulgur eval edits`, judged the same way
commits     lines of the packages' change logs as instructions for code that already has the change: any edit is wrong
next        a change that a release made in several places of a file: given the first, predict the others

The packages are fetched by version and hash (`eval/projects.py`).
"""

from __future__ import annotations

import contextlib
import difflib
import random
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fulgur.edit.document import Document
from fulgur.edit.editor import Proposal, Refusal, Task, locate
from fulgur.edit.next import Following
from fulgur.edit.refactor.source import Source, Unusable
from fulgur.edit.region import Target, qualified, symbols
from fulgur.errors import FulgurError
from fulgur.eval.edits import attempt
from fulgur.eval.edits.instructions import read_instructions
from fulgur.eval.edits.judge import sources
from fulgur.eval.projects import CONFIRM, PACKAGES, Package, Project, build
from fulgur.eval.score import Scores
from fulgur.eval.substitution import substituted

if TYPE_CHECKING:
    from fulgur.edit.model import Answer, Model

    Answerer = Callable[[Task], tuple[Proposal | Refusal, Answer | None]]
    Follower = Callable[[Following], Proposal | Refusal | None]

COMMITS, NEXT, NEXT_EACH, SEED = 60, 40, 15, 1
ROWS = (
    *("edits.own_words.right", "edits.own_words.wrong", "edits.commits.wrong"),
    *("next.right", "next.wrong", "next.confirm.right", "next.confirm.wrong"),
)
# An earlier release of each package, to find what changed since.
EARLIER = {
    "inflection": ("0.4.0", "32a5c3341d9583ec319548b9015b7fbdf8c429cbcb575d326c33ae3a0e90d52c"),
    "semver": ("3.0.0", "94df43924c4521ec7d307fc86da1531db6c2c33d9d5cdc3e64cca0eb68569269"),
    "unidiff": ("0.7.0", "91bb13b4969514a400679d9ae5e29a6ffad85346087677f8b5e2e036af817447"),
    "voluptuous": ("0.13.1", "e8d31c20601d6773cb14d4c0f42aee29c6821bbd1018039aac7ac5605b489723"),
    "schedule": ("1.1.0", "e6ca13585e62c810e13a08682e0a6a8ad245372e376ba2b8679294f377dfc8e4"),
    "xmltodict": ("0.13.0", "341595a488e3e01a85a9d8911d8912fd922ede5fecc4dce437eb4b6c8d037e56"),
    "html2text": ("2018.1.9", "627514fb30e7566b37be6900df26c2c78a030cc9e6211bda604d8181233bcdd4"),
    "addict": ("2.2.1", "f22493f056032f50e4931a82444fcba8ef74c8fc994c5d06aa546a1433c2b8b0"),
}
# Two releases of other packages, for answerers that need no model: no rule was chosen on them.
RELEASES = {
    "natsort": (
        ("7.0.1", "a633464dc3a22b305df0f27abcb3e83515898aa1fd0ed2f9726c3571a27258cf"),
        ("8.4.0", "45312c4a0e5507593da193dedd04abb1469253b601ecaf63445ad80f0a1ea581"),
    ),
    "lark": (
        ("0.12.0", "7da76fcfddadabbbbfd949bbae221efd33938451d90b1fefbbc423c3cccf48ef"),
        ("1.1.9", "15fa5236490824c2c4aba0e22d2d6d823575dcaf4cdd1848e34b6ad836240fba"),
    ),
    "sqlparse": (
        ("0.3.1", "e162203737712307dfe78860cc56c8da8a852ab2ee33750e33aeadf38d12c548"),
        ("0.5.0", "714d0a4932c059d16189f58ef5411ec2287a4360f17cdd0edd2d09d4c5087c93"),
    ),
    "oauthlib": (
        ("3.1.0", "bee41cc35fcca6e988463cacc3bcb8a96224f470ca547e697b604cc697b2f889"),
        ("3.2.2", "9859c40929662bec5d64f34d01c99e093149682a3f38915dc0655d5a633dd918"),
    ),
    "invoke": (
        ("1.4.1", "de3f23bfe669e3db1085789fd859eb8ca8e0c5d9c20811e2407fa042e8a5e15d"),
        ("2.2.0", "ee6cbb101af1a859c7fe84f2a264c059020b0cb7fe3535f9424300ab568f6bd5"),
    ),
    "redis": (
        ("3.5.3", "0e7e0cfca8660dea8b7d5cd8c4f6c5e29e11f31158c0b0ae91a397f00e5a05a2"),
        ("5.0.4", "ec31f2ed9675cc54c21ba854cfe0462e6faf1d83c8ce5944709db8a4700b9c61"),
    ),
    "blessed": (
        ("1.17.6", "a9a774fc6eda05248735b0d86e866d640ca2fef26038878f7e4d23f7749a1e40"),
        ("1.20.0", "2cdd67f8746e048f00df47a2880f4d6acbcdb399031b604e34ba8f71d5787680"),
    ),
    "tenacity": (
        ("6.2.0", "29ae90e7faf488a8628432154bb34ace1cca58244c6ea399fd33f066ac71339a"),
        ("8.3.0", "953d4e6ad24357bceffbc9707bc74349aca9d245f68eb65419cf0c249a1949a2"),
    ),
}
_BULLET = re.compile(r"^\s*(?:[*-]|#\d+:?|\d+\.)\s+(?=[A-Z])(.{15,120})$", re.MULTILINE)
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Repeated:
    """A change that a release made in several lines of a file.

    `pairs` are (line number, old, new); `kept` are the lines that the release did not change."""

    path: Path
    old: list[str]
    pairs: tuple[tuple[int, str, str], ...]
    kept: frozenset[int]


@dataclass(frozen=True)
class Changes:
    """All tasks; their folders exist as long as the context of `prepared` is open."""

    projects: list[Project]
    commits: list[tuple[Target, str]]
    repeated: list[Repeated]
    confirming: list[Repeated]  # from packages that no rule was chosen on


@contextlib.contextmanager
def prepared() -> Iterator[Changes]:
    """Build both releases of every package, and sample tasks from them."""
    with tempfile.TemporaryDirectory(prefix="fulgur-changes-") as place:
        now, then = Path(place).resolve() / "now", Path(place).resolve() / "then"
        now.mkdir()
        then.mkdir()
        projects = [build(package, now) for package in PACKAGES.values()]
        earlier = [build(_earlier(package), then) for package in PACKAGES.values()]
        drawn = random.Random(SEED)
        commits = [task for project in projects for task in _logged(project, drawn)]
        repeated = [one for old, new in zip(earlier, projects, strict=True) for one in _repeated(old, new)]
        drawn.shuffle(commits)
        drawn.shuffle(repeated)
        confirming: list[Repeated] = []
        for name, (old, new) in RELEASES.items():
            package = Package(name, *new, CONFIRM, name, "")
            found = list(_repeated(build(replace(package, version=old[0], sha256=old[1]), then), build(package, now)))
            drawn.shuffle(found)
            confirming += found[:NEXT_EACH]
        yield Changes(projects, commits[:COMMITS], repeated[:NEXT], confirming)


def _earlier(package: Package) -> Package:
    version, sha256 = EARLIER[package.name]
    return replace(package, version=version, sha256=sha256)


def _logged(project: Project, drawn: random.Random) -> Iterator[tuple[Target, str]]:
    """Lines of the change log, each with a function that it names, else with a random one."""
    logs = [path for path in sorted(project.folder.iterdir()) if re.match(r"(?i)change|history|news", path.name)]
    places = [target for path in sources(project) if "test" not in str(path) for target in _functions(path)]
    for log in logs:
        if not log.is_file() or not places:
            continue
        for line in _BULLET.findall(log.read_text(encoding="utf-8", errors="replace")):
            words = set(re.findall(r"\w{4,}", line))
            named = [target for target in places if (target.symbol or "").rpartition(".")[2] in words]
            yield drawn.choice(named or places), line.strip().rstrip(".")


def _functions(path: Path) -> list[Target]:
    try:
        source = Source(path.read_text(encoding="utf-8"))
    except (Unusable, UnicodeDecodeError):
        return []
    return [Target(path, ".".join(qualified(source, node))) for node in symbols(source)]


def _repeated(earlier: Project, now: Project) -> Iterator[Repeated]:
    """Changes of the same words that occur at least twice in a file."""
    for path in sources(now):
        before = earlier.folder / path.relative_to(now.folder.resolve())
        if before.is_file():
            yield from between(before, path)


def between(before: Path, after: Path) -> Iterator[Repeated]:
    """The changes between two versions of a file that occur in several lines."""
    old, new = (one.read_text(encoding="utf-8", errors="replace").splitlines() for one in (before, after))
    groups: defaultdict[str, list[tuple[int, str, str]]] = defaultdict(list)
    kept: set[int] = set()
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        kept |= set(range(a, b)) if tag == "equal" else set()
        if tag == "replace" and b - a == d - c:
            for number in range(b - a):
                one, two = old[a + number], new[c + number]
                gone, come = (Counter(_TOKEN.findall(line)) for line in (one, two))
                key = f"{sorted((gone - come).items())} {sorted((come - gone).items())}"
                if gone != come and sum((gone & come).values()) >= 2:
                    groups[key].append((a + number, one, two))
    for found in groups.values():
        if len(found) > 1:
            yield Repeated(before, old, tuple(found), frozenset(kept))


def score_all_changes(results: dict[str, Scores], models: list[tuple[str, Path]], say: Callable[[str], None]) -> None:
    """Score the models as the editor uses them, and the baselines: codemod, anchored substitution, the rules alone."""
    from fulgur.edit.editor import plan
    from fulgur.edit.model import Model
    from fulgur.eval.edits import codemod

    with prepared() as changes:
        for label, folder in models:
            say(f"{label}: changes")
            model = Model(str(folder))
            scores = results.setdefault(label, Scores())
            score_changes(scores, changes, lambda task, model=model: plan(task, model), _follower(model))  # type: ignore[misc]
        say("baselines: changes")
        score_changes(results.setdefault("codemod", Scores()), changes, codemod(), None)
        score_changes(results.setdefault("substitution", Scores()), changes, None, _substituted, confirm=True)
        # The editor without a model, because the models were trained on packages of the confirming set.
        score_changes(results.setdefault("rules", Scores()), changes, None, Following.known, confirm=True)


def _follower(model: Model) -> Follower:
    """Predict as `fulgur next` does: first without a model."""

    def follow(following: Following) -> Proposal | Refusal | None:
        if (known := following.known()) is not None:
            return known
        regions = following.regions
        answers = model.rewrite_all([following.item(region) for region in regions])
        said = [(answer.text, answer.finished) for answer in answers]
        return following.proposal(dict(zip(regions, said, strict=True)))

    return follow


def _substituted(following: Following) -> Proposal | None:
    """Repeat the last change wherever the same words are in the same context, without checks."""
    text = substituted(following.document.text, following.recent, following.changed)
    return Proposal(following.document, text) if text != following.document.text else None


def score_changes(
    scores: Scores, changes: Changes, answer: Answerer | None, follow: Follower | None, *, confirm: bool = False
) -> None:
    """Add the scores of one answerer; None: it does not support this kind of task."""
    if answer is not None:
        for project in changes.projects:
            with contextlib.chdir(project.folder):
                for instruction in read_instructions(project.package):
                    verdict = attempt(project, instruction, "", answer, None).verdict
                    scores.shares["edits.own_words.right"].add(verdict == "right")
                    scores.shares["edits.own_words.wrong"].add(verdict == "wrong_shown")
        for target, line in changes.commits:
            scores.shares["edits.commits.wrong"].add(_shown(target, line, answer))
    if follow is not None:
        confirming = changes.confirming if confirm else []
        for name, tasks in (("next", changes.repeated), ("next.confirm", confirming)):
            for task in tasks:
                right, wrong = _followed(task, follow)
                scores.shares[f"{name}.right"].add(right)
                scores.shares[f"{name}.wrong"].add(wrong)


def _shown(target: Target, line: str, answer: Answerer) -> bool:
    try:
        found, _ = answer(locate(target, line))
    except FulgurError:
        return False
    return isinstance(found, Proposal)


def _followed(task: Repeated, follow: Follower) -> tuple[bool, bool]:
    """Two results: at least one other place was changed and none wrongly; some place was changed wrongly."""
    first, *others = task.pairs
    lines = list(task.old)
    lines[first[0]] = first[2]
    document = Document.of(task.path, task.path.name, ("\n".join(lines) + "\n").encode())
    found = follow(Following.of(document, "\n".join(task.old) + "\n"))
    if not isinstance(found, Proposal):
        return False, False
    after = found.text.splitlines()
    if len(after) != len(lines):
        return False, True
    wanted = {number: new for number, _, new in others}
    changed = [number for number, (one, two) in enumerate(zip(lines, after, strict=True)) if one != two]
    # Lines that the release also changed in other ways do not count, nor do spaces.
    wrong = any(
        number in task.kept or not _same(after[number], wanted.get(number, after[number])) for number in changed
    )
    return any(number in wanted for number in changed) and not wrong, wrong


def _same(one: str, two: str) -> bool:
    """Whether two lines have the same words and signs, by which changes are grouped."""
    return _TOKEN.findall(one) == _TOKEN.findall(two)
