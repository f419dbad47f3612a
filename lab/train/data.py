"""Documents and edit examples -> rows of tokens, by many processes.

    python -m lab.train data code --corpus RUN/corpus --out RUN/rows --passes 12 --parts 4
    python -m lab.train data edits --corpus RUN/corpus --out RUN/rows --minutes 9
Each pass over the corpus cuts the files and chooses the hidden spans anew. Existing shards are kept. With `--parts 4` a
pass takes a quarter of the corpus and the next pass the next quarter, so that training can begin sooner.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fulgur.text.code_prompt import healed
from fulgur.text.edit_format import END, EOS, FILE, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, SPECIAL_IDS
from fulgur.workspace.folders import TOKENIZER
from lab.train.documents import Document, read_documents
from lab.train.fim import Kinds, Lines, Syntax, choose_span, syntax_spans
from lab.train.rows import pack, save_rows
from lab.train.shapes import CONTEXT
from lab.train.tokenizer import CodeTokenizer

Record = tuple[Sequence[int], Sequence[float]]
MIDDLE_WEIGHT = 3.0
NEIGHBOUR = 1600  # characters of a neighbouring file to show
SHORT = 1.5  # characters per token of the row: pieces up to this length leave room for a neighbour
_CHARACTERS_PER_TOKEN = 3.1  # a cautious estimate: a chunk of this size nearly always fits into a row


@dataclass(frozen=True)
class Cutting:
    """How files are cut into examples."""

    fim: float  # fraction of pieces with a hidden span
    whole: float  # fraction of pieces as long as a row allows; the others are `shortest` to `longest` of that
    shortest: float
    longest: float
    kinds: Kinds  # what is hidden
    context_weight: float  # loss weight of the text around a hidden span
    beside: float = 0.0  # fraction of short pieces preceded by some lines of a neighbouring file


# "code" teaches the language. "fim" is for annealing: its contexts are short, so that there are many completions.
CUTTINGS = {
    "code": Cutting(
        0.65, 0.5, 0.1, 1.0, Kinds(rest=0.28, several=0.3, block=0.1, node=0.12, piece=0.06, lines=0.1), 1.0
    ),
    # The suffix comes first, so the prefix is written with it in sight: that too is practice for completions. Mostly
    # the rest of one line is hidden, which is what an editor shows; pieces are up to what a prompt holds
    # (`text/code_prompt.py`).
    "fim": Cutting(
        0.97, 0.1, 0.08, 0.6, Kinds(rest=0.55, several=0.28, block=0.05, node=0.05, piece=0.03, lines=0.02), 0.3, 0.1
    ),
}


@dataclass(frozen=True)
class Job:
    kind: str  # "code", "fim" or "edits"
    shard: Path
    out: Path
    name: str
    number: int  # of the pass; each has another seed
    length: int
    tokenizer: Path
    deadline: float | None = None
    seed: int = 0


def chunks(text: str, lines: Lines, length: int, cutting: Cutting, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Cut a file at line breaks into pieces that fit into a row; the fraction `cutting.whole` is as long as it
    allows."""
    most = int((length - 40) * _CHARACTERS_PER_TOKEN)
    begin = 0
    starts = [*lines.starts[1:], len(text)]
    position = 0
    while begin < len(text):
        share = 1.0 if rng.random() < cutting.whole else rng.uniform(cutting.shortest, cutting.longest)
        target = begin + int(most * share)
        end = begin
        while position < len(starts) and starts[position] <= target:
            end = starts[position]
            position += 1
        if end <= begin:  # one line is longer than the target
            end = min(len(text), begin + most)
        yield begin, end
        begin = end


def shown_path(path: str, rng: random.Random) -> str:
    """The path as an editor might show it: mostly as packaged, sometimes below src/ or just the file name."""
    chance = rng.random()
    if chance < 0.1:
        return PurePosixPath(path).name
    return f"src/{path}" if chance < 0.25 else path


def fim_record(
    path: list[int], prefix: list[int], suffix: list[int], middle: list[int], length: int, context_weight: float = 1.0
) -> Record:
    """`<file>path <suffix>…<prefix>…<middle>…<end>`, with the far ends of the context cut to fit the row.

    The suffix comes first: with it between prefix and answer, the first model lost sight of the prefix.
    """
    room = length - len(path) - len(middle) - 5
    if room < 16:
        return [], []
    if len(prefix) + len(suffix) > room:
        after = min(len(suffix), max(room // 4, room - len(prefix)))
        suffix = suffix[:after]
        prefix = prefix[len(prefix) - (room - after) :] if len(prefix) > room - after else prefix
    ids = [
        SPECIAL_IDS[FILE],
        *path,
        SPECIAL_IDS[FIM_SUFFIX],
        *suffix,
        SPECIAL_IDS[FIM_PREFIX],
        *prefix,
        SPECIAL_IDS[FIM_MIDDLE],
    ]
    return [*ids, *middle, SPECIAL_IDS[END]], [context_weight] * len(ids) + [MIDDLE_WEIGHT] * (len(middle) + 1)


def beside(neighbours: Sequence[Document], cutting: Cutting, rng: random.Random) -> str:
    """Some lines of another file of the package, under its name; mostly empty."""
    if not neighbours or rng.random() >= cutting.beside:
        return ""
    other = rng.choice(neighbours)
    start = other.text.find("\n", rng.randrange(max(1, len(other.text) - NEIGHBOUR))) + 1
    lines = other.text[start : start + NEIGHBOUR]
    return f"{other.path}\n{lines[: lines.rfind(chr(10)) + 1]}"


def code_records(
    document: Document,
    tokenizer: CodeTokenizer,
    length: int,
    rng: random.Random,
    cutting: Cutting = CUTTINGS["code"],
    neighbours: Sequence[Document] = (),
) -> Iterator[Record]:
    text = document.text
    lines = Lines.of(text)
    python = document.path.endswith((".py", ".pyi"))
    syntax = syntax_spans(text, lines) if python else Syntax([], [], [])
    plans: list[tuple[int, int] | None] = []
    pieces: list[str] = []
    for begin, end in chunks(text, lines, length, cutting, rng):
        path = shown_path(document.path, rng)
        if end - begin > 40 and rng.random() < cutting.fim:
            a, b = choose_span(text, begin, end, lines, syntax, rng, cutting.kinds)
            prefix, begins = healed(text[begin:a])  # as a completion is asked for
            near = beside(neighbours, cutting, rng) if (end - begin) < SHORT * (length - 40) else ""
            plans.append((a, b))
            pieces += [f"{path}\n", prefix, text[b:end], begins + text[a:b], near]
        else:
            plans.append(None)
            pieces += [f"{path}\n{text[begin:end]}", "", "", "end" if end == len(text) else "", ""]
    encoded = tokenizer.encode_batch(pieces)
    for index, plan in enumerate(plans):
        first, second, third, fourth, near_ids = encoded[5 * index : 5 * index + 5]
        if plan is None:
            ids = [SPECIAL_IDS[FILE], *first]
            if fourth and len(ids) < length:
                ids.append(SPECIAL_IDS[EOS])
            yield ids[:length], [1.0] * min(len(ids), length)
        else:
            record, weights = fim_record(first, second, third, fourth, length, cutting.context_weight)
            if record and near_ids and len(record) + len(near_ids) < length:
                record = [SPECIAL_IDS[FILE], *near_ids, *record]
                weights = [cutting.context_weight] * (len(near_ids) + 1) + list(weights)
            yield record, weights


def edit_records(document: Document, tokenizer: CodeTokenizer, rng: random.Random) -> Iterator[Record]:
    """Yield the training examples of one file; held-out phrasings and operations are kept for evaluation."""
    from lab.train import edits
    from lab.train.edits.strange import SHARE, strange_names

    text = strange_names(document.text, rng) if rng.random() < SHARE else document.text
    for example in edits.generate_file(text, document.path, rng):
        if not (example.heldout_phrasing or example.heldout_op):
            yield edits.encode(tokenizer, example)


def make_rows(job: Job) -> tuple[str, int]:
    """Turn one shard of documents into rows on disk; return (name, rows)."""
    if job.deadline is not None and time.time() > job.deadline:
        return job.name, 0
    tokenizer = CodeTokenizer(job.tokenizer)
    rng = random.Random(f"{job.name}-{job.number}" + (f"-{job.seed}" if job.seed else ""))
    documents = list(read_documents(job.shard))
    rng.shuffle(documents)
    packages: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        packages[document.package].append(document)

    def records() -> Iterator[Record]:
        for document in documents:
            if job.kind in CUTTINGS:
                others = [other for other in packages[document.package] if other is not document]
                yield from code_records(document, tokenizer, job.length, rng, CUTTINGS[job.kind], others)
            elif document.path.endswith(".py"):
                if job.deadline is not None and time.time() > job.deadline:
                    return
                yield from edit_records(document, tokenizer, rng)

    found: Iterable[Record] = records()
    if job.kind == "edits":
        # Examples of one file must not share a row: one answer would reveal what the next one asks for.
        held = [(array("H", ids), array("f", values)) for ids, values in found]
        rng.shuffle(held)
        found = held
    tokens, weights = pack(found, job.length)
    order = list(range(len(tokens)))
    rng.shuffle(order)
    if not order:
        return job.name, 0
    save_rows(job.out, job.name, tokens[order], weights[order])
    return job.name, len(tokens)


def jobs(kind: str, args: Any, number: int, deadline: float | None) -> list[Job]:
    found = []
    for shard in sorted(Path(args.corpus).glob("train-*.jsonl")) + sorted(Path(args.corpus).glob("heldout-*.jsonl")):
        split, index = shard.stem.split("-")
        if (split == "heldout" and number) or (split == "train" and int(index) % args.parts != number % args.parts):
            continue
        name = f"{split}-{kind}-{number}-{index}"
        if not (Path(args.out) / f"{name}.tokens.npy").exists():
            seed = 0 if split == "heldout" else args.seed  # the held-out rows are the same in every run
            found.append(
                Job(kind, shard, Path(args.out), name, number, args.context + 1, args.tokenizer, deadline, seed)
            )
    return sorted(found, key=lambda job: not job.name.startswith("heldout"))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.train data", description="Turn documents into rows of tokens.")
    parser.add_argument("kind", choices=("code", "fim", "edits"))
    parser.add_argument("--corpus", type=Path, required=True, help="the folder that `corpus` wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--first-pass", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1, help="number of parts of the corpus; a pass takes one")
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seed", type=int, default=0, help="seed for how the training files are cut")
    parser.add_argument("--minutes", type=float, default=None, help="stop making new rows after this long")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    args = parser.parse_args(argv)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    deadline = None if args.minutes is None else time.time() + 60 * args.minutes
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for number in range(args.first_pass, args.first_pass + args.passes):
            began, rows = time.time(), 0
            for _, count in pool.imap_unordered(make_rows, jobs(args.kind, args, number, deadline)):
                rows += count
            print(
                f"{args.kind} pass {number}: {rows} rows of {args.context} tokens in {time.time() - began:.0f} s",
                flush=True,
            )
            # The marker tells a running training that this pass is complete.
            (args.out / f"{args.kind}-{number}.done").write_text(f"{rows}\n")
            if deadline is not None and time.time() > deadline:
                break
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
