"""Held-out packages -> a frozen set of tasks for `fulgur eval model`: edits, no-ops, next edits and completions.

    python -m lab.train tasks --packages PACKAGES --out src/fulgur/eval/model_tasks.jsonl.xz   # the set that ships
    python -m lab.train tasks --source FOLDER --per-op 3 --holes 200 --out FILE                # any Python code
    python -m lab.train tasks --registry HELD --cursors 400 --out src/fulgur/eval/cursor_tasks.jsonl.xz
The same files, sizes and seed give the same tasks. The licence texts of the packages travel with the tasks.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.eval.cursors import KINDS, TYPED
from fulgur.eval.tasks import EditExample, Hole, Tasks, write_tasks
from fulgur.text.edit_format import NoEdit
from lab.train.documents import read_documents
from lab.train.edits import OPERATIONS, generate_file
from lab.train.filters import is_data, is_source
from lab.train.gather import find_package, licence_text, read_packages
from lab.train.sources import read_sources

SPLITS = ("seen", "heldout_phrasing", "heldout_op")
PREFIX_CHARS, SUFFIX_CHARS = 2400, 800
LONGEST_REGION = 2200  # characters; with its answer it fits into the context even where tokens are short
MOST_FILES = 700  # rare operations may not reach their quota


@dataclass(frozen=True)
class File:
    """One Python file to make tasks from."""

    package: str
    path: str
    text: str


def from_packages(folders: list[Path]) -> tuple[list[File], list[dict[str, str]]]:
    """The files of the listed held-out packages, with each package's version and licence."""
    sources = [source for source in read_sources() if source.split == "heldout"]
    files = [File(d.package, d.path, d.text) for d in read_packages(sources, folders) if d.path.endswith(".py")]
    packages = [
        {"name": s.key, "version": s.version, "licence": s.licence, "text": licence_text(find_package(s, folders))}
        for s in sources
    ]
    return files, packages


def from_archive(archive: Path) -> list[File]:
    """The held-out files in the output of `gather` or `corpus`."""
    shards = sorted(archive.glob("heldout-*.jsonl")) if archive.is_dir() else [archive]
    documents = (document for shard in shards for document in read_documents(shard))
    return [File(d.package, d.path, d.text) for d in documents if d.split == "heldout" and d.path.endswith(".py")]


def from_registry(folder: Path) -> tuple[list[File], list[dict[str, str]]]:
    """The files of held-out packages that `registry` fetched, with their licence texts."""
    documents = [d for shard in sorted(folder.glob("*.jsonl")) for d in read_documents(shard)]
    packages = sorted({(d.package, d.version, d.licence) for d in documents})
    named = [
        {"name": n, "version": v, "licence": licence, "text": text(folder / f"{n}.licence")}
        for n, v, licence in packages
    ]
    return [File(d.package, d.path, d.text) for d in documents], named


def from_folder(folder: Path) -> list[File]:
    """Any Python files."""
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
    return [File(folder.name, str(path.relative_to(folder.parent)), text(path)) for path in paths]


def text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def make_tasks(files: Iterable[File], per_op: int, holes: int, seed: int) -> Tasks:
    """Make tasks; the same files and seed give the same tasks. Packages alternate, so that none dominates."""
    files = [file for file in files if 300 <= len(file.text) <= 200_000]
    if not files:
        raise FulgurError("there are no files to make tasks from", hint="Give --packages, --archive or --source.")
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
            # Once most operations are full, look only for the rare ones, which is much faster.
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


def make_cursors(files: Iterable[File], count: int, typed: int, seed: int) -> dict[str, list[Hole]]:
    """Cursors of each kind, and lines to type. Tests, examples and docs are left out; packages alternate."""
    rng = random.Random(seed)
    usable = [file for file in files if 300 <= len(file.text) <= 200_000 and not is_data(file.text)]
    ordered = in_turn([file for file in usable if is_source(file.path)], rng)
    found: dict[str, list[Hole]] = {}
    for kind, wanted in (*((kind, count) for kind in KINDS), (TYPED, typed)):
        found[kind] = []
        for file in ordered * (1 + 20 * wanted // len(ordered)):
            if len(found[kind]) == wanted:
                break
            if (place := cursor_in(file, kind, rng)) is not None:
                found[kind].append(place)
    return found


def cursor_in(file: File, kind: str, rng: random.Random) -> Hole | None:
    """One line of code of at least six characters, and a place in it."""
    strings = string_lines(file.text)
    lines, base = [], 0
    for number, raw in enumerate(file.text.split("\n"), 1):
        line = raw.rstrip()
        if len(line.strip()) >= 6 and not line.lstrip().startswith("#") and number not in strings:
            lines.append((base, line))
        base += len(raw) + 1
    if not lines:
        return None
    base, line = rng.choice(lines)
    if kind == "word":
        places = [m.start() for m in re.finditer(r"\w+|[^\w\s]", line)]
        places = [at for at in places if len(line[at:].strip()) >= 3 and re.search(r"\w", line[at:])]
    elif kind == "inside_word":
        places = [at for m in re.finditer(r"[A-Za-z_]\w{2,}", line) for at in range(m.start() + 1, m.end())]
    else:  # column 0; only an indented line says more than that a statement follows
        places = [0] if line[0] in " \t" or kind == TYPED else []
    if not places:
        return None
    at = rng.choice(places)
    return hole(file, base + at, base + len(line))


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
    """A hole with its context, cut to whole lines at the far ends."""
    begin = max(0, start - PREFIX_CHARS)
    if begin > 0:
        begin = file.text.find("\n", begin, start) + 1 or begin
    stop = min(len(file.text), end + SUFFIX_CHARS)
    if stop < len(file.text):
        stop = file.text.rfind("\n", end, stop) + 1 or stop
    return Hole(file.path, file.text[begin:start], file.text[end:stop], file.text[start:end])


def single_line(file: File, rng: random.Random) -> Hole | None:
    """Hide the rest of a line of code, from a word boundary."""
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
    """Hide two to five whole lines: one or more statements of a function's body."""
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
    """The lines inside multi-line strings: prose, not code."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.lineno != node.end_lineno:
            found.update(range(node.lineno, (node.end_lineno or 0) + 1))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.train tasks", description="Freeze a set of tasks for `fulgur eval model`."
    )
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--packages", type=Path, nargs="+", help="folders with the wheels of the held-out packages")
    given.add_argument("--archive", type=Path, help="an archive that `gather` wrote, or a corpus folder")
    given.add_argument("--source", type=Path, help="any folder of Python code")
    given.add_argument("--registry", type=Path, help="a folder of held-out packages that `registry` wrote")
    parser.add_argument("--cursors", type=int, default=0, help="limit on cursors of each kind, and on lines to type")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--per-op", type=int, default=6, help="examples of each operation and column (default 6)")
    parser.add_argument("--holes", type=int, default=600, help="single-line completions; half as many of several lines")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    packages: list[dict[str, str]] = []
    if args.packages:
        files, packages = from_packages(args.packages)
    elif args.registry:
        files, packages = from_registry(args.registry)
    else:
        files = from_archive(args.archive) if args.archive else from_folder(args.source)
    if args.cursors:
        tasks = Tasks(cursors=make_cursors(files, args.cursors, args.cursors // 5, args.seed))
    else:
        tasks = make_tasks(files, args.per_op, args.holes, args.seed)
    tasks.packages = packages
    write_tasks(tasks, args.out)
    print(f"{args.out}: {tasks.size} tasks, {args.out.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
