"""What the models are asked in the evaluation: edits, no-ops, next edits and completions from held-out packages."""

from __future__ import annotations

import ast
import importlib.metadata
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.text.edit_format import NoEdit
from lab.train.edits import OPERATIONS, EditExample, generate_file

SPLITS = ("seen", "heldout_phrasing", "heldout_op")
PREFIX_CHARS, SUFFIX_CHARS = 2400, 800
LONGEST_REGION = 2200  # characters; with its answer it fits the context even where tokens are short
MOST_FILES = 700  # rare operations may stay short of their quota


@dataclass(frozen=True)
class File:
    """One Python file to take tasks from."""

    package: str
    path: str
    text: str


@dataclass(frozen=True)
class Hole:
    """A completion: what stands before and after the hidden text."""

    path: str
    prefix: str
    suffix: str
    middle: str


@dataclass
class Tasks:
    edits: dict[str, list[EditExample]] = field(default_factory=dict)  # by split; answers are rewrites and calls
    noops: list[EditExample] = field(default_factory=list)
    next_edits: list[EditExample] = field(default_factory=list)
    single: list[Hole] = field(default_factory=list)
    multi: list[Hole] = field(default_factory=list)

    @property
    def size(self) -> int:
        edits = sum(len(found) for found in self.edits.values())
        return edits + len(self.noops) + len(self.next_edits) + len(self.single) + len(self.multi)


def read_files(archive: Path | None, source: Path | None) -> list[File]:
    """Held-out files of an archive or corpus folder, any folder of Python, or the installed held-out packages."""
    if source is not None:
        paths = [source] if source.is_file() else sorted(source.rglob("*.py"))
        found = [File(source.name, str(path.relative_to(source.parent)), text(path)) for path in paths]
    elif archive is not None:
        found = list(archived(archive))
    else:
        found = list(installed())
    found = [file for file in found if 300 <= len(file.text) <= 200_000]
    if not found:
        raise FulgurError(
            "there are no held-out files to evaluate on",
            hint="Give --archive FILE (what `fulgur train gather` or `corpus` wrote) or --source FOLDER of Python.",
        )
    return found


def text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def archived(archive: Path) -> Iterator[File]:
    from lab.train.documents import read_documents

    shards = sorted(archive.glob("heldout-*.jsonl")) if archive.is_dir() else [archive]
    for shard in shards:
        for document in read_documents(shard):
            if document.split == "heldout" and document.path.endswith(".py"):
                yield File(document.package, document.path, document.text)


def installed() -> Iterator[File]:
    from lab.train.sources import heldout_names, normalise

    held = heldout_names()
    for distribution in importlib.metadata.distributions():
        name = normalise(distribution.metadata["Name"] or "")
        if name not in held:
            continue
        for path in distribution.files or ():
            if str(path).endswith(".py"):
                yield File(name, str(path), text(Path(str(distribution.locate_file(path)))))


def make_tasks(files: Iterable[File], per_op: int, holes: int, seed: int) -> Tasks:
    """The same files and seed give the same tasks. The packages are taken in turn, so that none dominates."""
    ordered = in_turn(files, random.Random(seed))
    tasks = Tasks()
    noops: list[EditExample] = []
    for split in SPLITS:
        chosen = [name for name, op in OPERATIONS.items() if op.heldout == (split == "heldout_op")]
        quota = per_op if split != "heldout_op" else per_op * 4
        counts: Counter[str] = Counter()
        found: list[EditExample] = []
        for file in ordered[:MOST_FILES]:
            missing = {name for name in chosen if counts[name] < quota}
            if not missing:
                break
            # Once most operations are full, only the rare ones are looked for: that is much faster.
            only = missing if len(missing) < len(chosen) // 2 else None
            rng = random.Random(f"{seed}{split}{file.path}")
            for example in generate_file(file.text, file.path, rng, split=split, only=only):
                if len(example.region) > LONGEST_REGION:
                    continue
                if isinstance(example.answer, NoEdit):
                    noops.append(example)
                elif example.op == "next_edit":
                    tasks.next_edits.append(example)
                elif example.op in OPERATIONS and counts[example.op] < quota:
                    counts[example.op] += 1
                    found.append(example)
        tasks.edits[split] = found
    rng = random.Random(seed)
    wanted = max(20, per_op * 50)
    tasks.noops = rng.sample(noops, min(len(noops), wanted))
    tasks.next_edits = rng.sample(tasks.next_edits, min(len(tasks.next_edits), wanted // 4))
    for file in ordered:
        if len(tasks.single) >= holes and len(tasks.multi) >= holes // 2:
            break
        if is_data(file.text):
            continue
        for _ in range(2):
            if len(tasks.single) < holes and (hole := single_line(file, rng)):
                tasks.single.append(hole)
        if len(tasks.multi) < holes // 2 and (hole := several_lines(file, rng)):
            tasks.multi.append(hole)
    return tasks


def is_data(source: str) -> bool:
    """Tables of numbers and strings: completing them says nothing about code."""
    lines = [line for line in source.split("\n") if line.strip()]
    return sum(bool(re.match(r"\s*[-\"'\d(\[{]", line)) for line in lines) > 0.4 * len(lines)


def in_turn(files: Iterable[File], rng: random.Random) -> list[File]:
    packages: dict[str, list[File]] = defaultdict(list)
    for file in files:
        packages[file.package].append(file)
    for found in packages.values():
        rng.shuffle(found)
    names = sorted(packages)
    rng.shuffle(names)
    deepest = max(len(found) for found in packages.values())
    return [packages[name][i] for i in range(deepest) for name in names if i < len(packages[name])]


def hole(file: File, start: int, end: int) -> Hole:
    """Context in whole lines at its far ends."""
    begin = max(0, start - PREFIX_CHARS)
    if begin > 0:
        begin = file.text.find("\n", begin, start) + 1 or begin
    stop = min(len(file.text), end + SUFFIX_CHARS)
    if stop < len(file.text):
        stop = file.text.rfind("\n", end, stop) + 1 or stop
    return Hole(file.path, file.text[begin:start], file.text[end:stop], file.text[start:end])


def single_line(file: File, rng: random.Random) -> Hole | None:
    """The rest of a line of code, from a word boundary."""
    lines = file.text.split("\n")
    strings = string_lines(file.text)
    for _ in range(10):
        number = rng.randrange(len(lines))
        line = lines[number]
        if not line.strip() or line.lstrip().startswith("#") or number + 1 in strings:
            continue
        starts = [m.start() for m in re.finditer(r"\w+|[^\w\s]", line)]
        places = [at for at in starts if len(line[at:].strip()) >= 3 and re.search(r"\w", line[at:])]
        if places:
            base = sum(len(before) + 1 for before in lines[:number])
            at = rng.choice(places)
            return hole(file, base + at, base + len(line.rstrip()))
    return None


def several_lines(file: File, rng: random.Random) -> Hole | None:
    """Two to five whole lines: one or more statements of a function's body."""
    try:
        tree = ast.parse(file.text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    lines = file.text.split("\n")
    spans = []
    for node in ast.walk(tree):
        block = getattr(node, "body", None)
        if not isinstance(block, list) or isinstance(node, ast.Module):
            continue
        for i, first in enumerate(block):
            for last in block[i : i + 4]:
                if 2 <= (last.end_lineno or 0) - first.lineno + 1 <= 5:
                    spans.append((first.lineno, first.col_offset, last.end_lineno or 0))
    if not spans:
        return None
    begin, column, end = rng.choice(spans)
    if not lines[begin - 1].isascii() or any(number in string_lines(file.text) for number in range(begin, end + 1)):
        return None
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line) + 1)
    return hole(file, offsets[begin - 1] + column, offsets[end - 1] + len(lines[end - 1].rstrip()))


def string_lines(source: str) -> set[int]:
    """Lines inside strings of several lines: prose, not code."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.lineno != node.end_lineno:
            found.update(range(node.lineno, (node.end_lineno or 0) + 1))
    return found
