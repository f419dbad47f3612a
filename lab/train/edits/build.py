"""Turns a file into training examples: find changes, choose regions, write instructions, add no-ops and next edits."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from fulgur.edit.refactor.source import Edit, Source, Unusable, apply_edits, parse_region
from fulgur.eval.grade import reaches, target
from fulgur.eval.tasks import EditExample
from fulgur.text.edit_format import SPECIAL_TOKENS, Answer, Call, NoEdit, Rewrite
from lab.train.edits import (  # noqa: F401  (importing registers the operations)
    containers,
    expressions,
    imports,
    scopes,
    signatures,
    statements,
    templates,
)
from lab.train.edits.calls import candidates, carried_out, pattern, readable, refactored
from lab.train.edits.example import OPERATIONS, Change, Operation
from lab.train.edits.finish import finish
from lab.train.edits.nextedit import next_edits
from lab.train.edits.phrase import Instruction, instruction, phrasings
from lab.train.edits.refusals import not_applicable, refusals, unrelated
from lab.train.edits.regions import choose_region
from lab.train.edits.strange import new_name

SATISFIED, ABSENT, UNABLE, NEXT = 0.10, 0.12, 0.025, 0.10  # fractions of no-ops by kind, and of next-edit examples
ANYWHERE = 0.05  # in training, chance that a call without arguments is requested for an arbitrary region
UNRELATED = 0.12  # in training, rate of commit subjects that are about other code
NEAR = 0.1  # in training, rate of refusals close to what it can do: half of run 2's false edits were on such
# Training sees more requests that are already satisfied: the first model repeated a removal in every second such case.
SATISFIED_IN_TRAINING = 0.2
MOST_SITES = 16
LONGEST_FILE = 400_000
SPLITS = ("train", "seen", "heldout_phrasing", "heldout_op")


def generate_file(
    source: str,
    path: str,
    rng: random.Random,
    *,
    split: str = "train",
    most: int = 40,
    only: Collection[str] | None = None,
) -> list[EditExample]:
    """Generate the examples of one file; [] for a file that cannot be used. Never raises on odd input.

    split: "train" and "seen" use the trained operations and phrasings, "heldout_phrasing" the phrasings kept back,
    "heldout_op" the operations kept back (with all their phrasings). `only` restricts to some operations.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}")
    if len(source) > LONGEST_FILE or "\t" in source or any(token in source for token in SPECIAL_TOKENS):
        return []
    try:
        src = Source(source, path)
    except (Unusable, RecursionError):
        return []
    examples: list[EditExample] = []
    names = [n for n, op in OPERATIONS.items() if op.heldout == (split == "heldout_op") and (only is None or n in only)]
    rng.shuffle(names)
    for name in names:
        if len(examples) >= most:
            break
        op = OPERATIONS[name]
        if only is None and rng.random() >= op.rate:
            continue
        try:
            examples += operate(src, op, rng, split)
        except (Unusable, RecursionError, IndexError, ValueError):
            continue
    if split != "heldout_op" and only is None:
        examples += refusals(src, rng, split, "unable", UNABLE, len(examples))
        if split == "train":
            examples += refusals(src, rng, split, "near", NEAR, len(examples))
            examples += unrelated(src, rng, UNRELATED, len(examples))
        wanted = sum(rng.random() < NEXT for _ in range(len(examples) + 2))
        with contextlib.suppress(Unusable, RecursionError, IndexError, ValueError):
            examples += next_edits(src, rng, wanted)
    return examples


def operate(src: Source, op: Operation, rng: random.Random, split: str) -> list[EditExample]:
    """Make up to `op.limit` examples of one operation, with its fraction of no-ops."""
    examples: list[EditExample] = []
    changes: Sequence[Change] = collect(src, op, rng)
    if op.sites:
        order = list(range(len(changes)))
        rng.shuffle(order)
        order = order[: op.limit * 2]
        chosen = [changes[i] for i in order]
    else:
        chosen = list(changes)
    used: list[tuple[int, int]] = []
    for change in chosen:
        if len(examples) >= op.limit:
            break
        try:
            example = build(src, op, change, changes, rng, split, used)
        except Unusable:
            continue
        if example is not None:
            examples.append(example)
    anywhere = split == "train" and not op.sites and pattern(op.name, "") == op.name and rng.random() < ANYWHERE
    if anywhere or (op.sites and op.absent and rng.random() < ABSENT * op.rate):
        example = not_applicable(src, op, rng, split)
        if example is not None:
            examples.append(example)
    return examples


def collect(src: Source, op: Operation, rng: random.Random) -> list[Change]:
    """Collect what the generator finds; if it gives up half-way, keep what it had."""
    changes: list[Change] = []
    most = 400 if op.sites else op.limit * 3
    try:
        for change in op.generate(src, rng):
            changes.append(change)
            if len(changes) >= most:
                break
    except (Unusable, RecursionError, IndexError, ValueError, AssertionError):
        pass
    return changes


def build(
    src: Source,
    op: Operation,
    change: Change,
    changes: Sequence[Change],
    rng: random.Random,
    split: str,
    used: list[tuple[int, int]],
) -> EditExample | None:
    """Build one example of a change: region, texts before and after, instruction."""
    spans = [] if change.call else [(edit.start, edit.end) for edit in change.edits]
    if change.cover:
        spans.append(change.cover)
    start, end = min(span[0] for span in spans), max(span[1] for span in spans)
    named = change.within is not None and rng.random() < 0.2
    region = choose_region(src, start, end, rng, None if named else change.within)
    if named and change.within is not None and region[0] >= change.within[0] and region[1] <= change.within[1]:
        named = False
    if region in used and op.sites:
        return None
    used.append(region)
    edits = list(change.edits)
    if op.sites:
        edits = combine(change, changes, region, rng)
        if len(edits) > MOST_SITES:
            return None
    written = write(op, change.variant, change.slots, rng, split, "func" if named else change.needs)
    if written is None:
        return None
    if change.call is not None:
        return built_call(src, op, change, region, rng, written, split)
    human = src.text[slice(*region)]
    below = src.text[region[1] :][:400]
    if edits:
        changed: str | None = apply_edits(human, edits, region[0])
    else:
        place = partial(begins_in, src, region, change.cover or region)
        changed = refactored(op.name, change.variant, change.slots, human, below, place)
    if changed is None:
        return None
    before, after = (changed, human) if change.inverse else (human, changed)
    if before == after or not before.strip() or not after.strip():
        return None
    if change.unique and count(before, change.unique) != 1:
        return None
    if change.once and len(re.findall(change.once, before)) != 1:
        return None
    if op.sites and op.absent and re.search(op.absent, after):
        return None
    parse_region(after)
    parse_region(before)
    done = change.noop and rng.random() < satisfied(split)
    example = finish(src, op.name, region, before, Rewrite(after), written, split, rng)
    return called(example, change, below, done, split)


def begins_in(src: Source, region: tuple[int, int], cover: tuple[int, int], after: str) -> bool:
    """Whether the first line that differs lies in `cover`: then the refactoring found the place that was meant."""
    before = src.text[slice(*region)].split("\n")
    same = next((i for i, (one, two) in enumerate(zip(before, after.split("\n"), strict=False)) if one != two), 0)
    line = src.line_of(region[0]) + same
    return src.line_of(cover[0]) <= line <= src.line_of(max(cover[0], cover[1] - 1))


def called(example: EditExample, change: Change, below: str, done: bool, split: str) -> EditExample | None:
    """Answer the example with a call, if one yields the target; `done`: the request is already satisfied.

    In training, an operation that has a call is always answered with one: the refactoring itself sees whether anything
    is left to do. The evaluation keeps every example.
    """
    after = target(example)
    answer: Answer | None = None
    for candidate in candidates(example.op, change.variant, change.slots, after):
        call = readable(candidate)
        result = carried_out(call, example.region, below) if call else None
        if call is not None and result is not None and reaches(example, result):
            answer = call
            break
    if done:
        refused = isinstance(answer, Call) and carried_out(answer, after, below) is None
        kept = answer if answer is not None and refused and split == "train" else NoEdit()
        return replace(example, region=after, answer=kept)
    if answer is not None:
        return replace(example, answer=answer, result=after)
    return None if split == "train" and pattern(example.op, change.variant) else example


def combine(change: Change, changes: Sequence[Change], region: tuple[int, int], rng: random.Random) -> list[Edit]:
    """Combine every site in the region (for inverse changes sometimes only some: the others are already fine)."""
    inside = [c for c in changes if all(region[0] <= e.start and e.end <= region[1] for e in c.edits)]
    inside = [c for c in inside if c.inverse == change.inverse and c.variant == change.variant]
    if change.inverse and len(inside) > 1 and rng.random() < 0.4:
        others = [c for c in inside if c is not change]
        inside = [change, *rng.sample(others, rng.randrange(len(others)))]
    edits: list[Edit] = []
    for candidate in sorted(inside, key=lambda c: min(c.edits)):
        if not edits or min(candidate.edits).start >= edits[-1].end:
            edits += sorted(candidate.edits)
    return edits


def built_call(
    src: Source,
    op: Operation,
    change: Change,
    region: tuple[int, int],
    rng: random.Random,
    written: Instruction,
    split: str,
) -> EditExample | None:
    """Build an example whose answer is a call: the region stays as it is, and edits (if any) spoil the file around
    it."""
    if change.call is None or any(e.start < region[1] and e.end > region[0] for e in change.edits) != change.spoils:
        return None
    before = src.text[slice(*region)]
    if change.spoils:
        before = apply_edits(before, change.edits, region[0])
    parse_region(before)
    if change.unique and count(before, change.unique) != 1:
        return None
    slots = change.slots
    answer: Answer = change.call
    missing = next((slot for slot in ("old", "param") if slot in slots), None)
    if change.noop and missing and rng.random() < satisfied(split) * 1.3:
        other = rng.choice(
            ["foo_bar", "tmp_value", "old_handler", "user_cache", "page_index", "flag", "resolver", "ctx_id"]
        )
        if split == "train" and rng.random() < 0.7:
            other = new_name(rng, slots[missing])
        if re.search(rf"\b{other}\b", src.text):
            return None
        again = write(op, change.variant, {**slots, missing: other, "old": other}, rng, split, None)
        if again is None:
            return None
        written, answer = again, NoEdit()
    text = src.text if change.spoils else apply_edits(src.text, change.edits)
    shift = 0 if change.spoils else sum(len(e.text) - (e.end - e.start) for e in change.edits if e.end <= region[0])
    moved = (region[0] + shift, region[1] + shift)
    return finish(src, op.name, moved, before, answer, written, split, rng, text)


def count(text: str, needle: str) -> int:
    """Count occurrences of a piece of code, except inside longer words."""
    head = r"(?<![\w.])" if re.match(r"\w", needle) else ""
    tail = r"(?!\w)" if re.search(r"\w$", needle) else ""
    return len(re.findall(head + re.escape(needle) + tail, text))


def write(
    op: Operation, variant: str, slots: dict[str, str], rng: random.Random, split: str, needs: str | None
) -> Instruction | None:
    key = f"{op.name}.{variant}" if variant and f"{op.name}.{variant}" in phrasings() else op.name
    heldout = split == "heldout_phrasing" or (split == "heldout_op" and rng.random() < 0.2)
    return instruction(key, slots, rng, heldout=heldout, needs=needs, vary=split == "train")


def satisfied(split: str) -> float:
    return SATISFIED_IN_TRAINING if split == "train" else SATISFIED
