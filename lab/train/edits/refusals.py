"""Instructions that change nothing: what they want changed is not there, or is beyond the models' ability."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from fulgur.edit.refactor.source import Source, Unusable, parse_region
from fulgur.eval.tasks import EditExample
from fulgur.text.edit_format import NoEdit
from lab.train.edits.calls import candidates, carried_out
from lab.train.edits.example import Operation
from lab.train.edits.finish import finish
from lab.train.edits.phrase import Instruction, instruction, phrasings
from lab.train.edits.regions import choose_region


def random_region(src: Source, rng: random.Random) -> tuple[int, int]:
    """The region of a random function or statement of the file."""
    functions = src.functions()
    nodes = functions if functions and rng.random() < 0.85 else src.tree.body
    if not nodes:
        raise Unusable("empty file")
    return choose_region(src, *src.whole_lines(rng.choice(nodes)), rng)


def not_applicable(src: Source, op: Operation, rng: random.Random, split: str) -> EditExample | None:
    """A region without anything that the operation is about: nothing to do.

    In training, a call that needs no arguments is the answer whatever the region contains.
    """
    for _ in range(3):
        try:
            region = random_region(src, rng)
            text = src.text[slice(*region)]
            parse_region(text)
        except Unusable:
            continue
        if op.absent and re.search(op.absent, text):
            continue
        variants = [key for key in phrasings() if key.split(".")[0] == op.name]
        slots = {"logger": "logger", "level": "info"}
        written = instruction(
            rng.choice(variants), slots, rng, heldout=split == "heldout_phrasing", vary=split == "train"
        )
        if written is not None and op.name != "string_quotes":
            example = finish(src, op.name, region, text, NoEdit(), written, split, rng)
            call = next(candidates(op.name, "", slots, text), None) if split == "train" else None
            if call is None:
                return example
            return replace(example, answer=call, result=carried_out(call, text, example.below))
    return None


def refusals(src: Source, rng: random.Random, split: str, key: str, share: float, others: int) -> list[EditExample]:
    """Instructions beyond the model's ability, answered with no edit: some far from the trained ones, some near
    them."""
    examples = []
    for _ in range(sum(rng.random() < share for _ in range(others + 1))):
        try:
            region = random_region(src, rng)
        except Unusable:
            continue
        text = src.text[slice(*region)]
        named = re.search(r"def (\w+)", text)
        slots = {"func": named[1]} if named else {}
        if key == "near":
            slots |= mentioned(text, rng)
        written = instruction(key, slots, rng, heldout=split == "heldout_phrasing", vary=split == "train")
        if written is not None:
            examples.append(finish(src, "unable", region, text, NoEdit(), written, split, rng))
    return examples


@cache
def commit_subjects() -> tuple[str, ...]:
    """What people wrote about real commits to other code than this."""
    lines = (Path(__file__).parent / "commits.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if not line.startswith("# "))


def unrelated(src: Source, rng: random.Random, share: float, others: int) -> list[EditExample]:
    """Subjects of commits to other projects, for training: nothing here is what they are about."""
    examples = []
    for _ in range(sum(rng.random() < share for _ in range(others + 1))):
        subject = rng.choice(commit_subjects())
        if rng.random() < 0.4:
            subject = subject[0].lower() + subject[1:]
        try:
            region = random_region(src, rng)
        except Unusable:
            continue
        text, written = src.text[slice(*region)], Instruction(subject, "commit:0", False)
        examples.append(finish(src, "unable", region, text, NoEdit(), written, "train", rng))
    return examples


def mentioned(text: str, rng: random.Random) -> dict[str, str]:
    """Names of a region that an instruction may speak of."""
    patterns = {
        "name": r"(?m)^\s*([A-Za-z_]\w*)(?:: [^=\n]+)? = ",
        "call": r"([A-Za-z_][\w.]*)\(",
        "param": r"(?:def \w+\(|, )([a-z_]\w*)(?=[,)=:])",
        "value": r"(\"[^\"\\\n]{1,20}\"|'[^'\\\n]{1,20}'|\b\d+\b)",
        "kind": r"class (\w+)",
    }
    found = {slot: re.findall(each, text) for slot, each in patterns.items()}
    return {slot: rng.choice(names) for slot, names in found.items() if names}
