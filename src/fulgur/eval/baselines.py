"""Simple baselines: copying, prompt lookup and n-grams."""

from __future__ import annotations

import re
import sysconfig
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

from fulgur.eval.tasks import EditExample, Hole
from fulgur.text.edit_format import END

LIBRARY = (
    "argparse",
    "ast",
    "csv",
    "dataclasses",
    "inspect",
    "logging/__init__",
    "os",
    "pathlib",
    "shutil",
    "subprocess",
)


class Copy:
    """Returns the region unchanged; for a completion, the line above."""

    name = "copy"

    def edit(self, example: EditExample) -> str:
        return example.region + END

    def fill(self, hole: Hole, several: bool) -> str:
        above = [line.strip() for line in hole.prefix.split("\n")[:-1] if line.strip()]
        return "\n".join(above[-3:]) if several else (above[-1] if above else "")


def words(text: str) -> list[str]:
    """Split code into words, operators and line breaks with their indentation; joined, they are the text."""
    return re.findall(r"\n[ \t]*|\w+|[^\w\s]|[ \t]+", text)


class Lookup:
    """Copies the continuation of another place with the same preceding words; the last word may be a prefix.

    An edit starts at the region and so repeats it.
    """

    name = "lookup"

    def edit(self, example: EditExample) -> str:
        return example.region + END

    def fill(self, hole: Hole, several: bool) -> str:
        before, after = words(hole.prefix), words(hole.suffix)
        begun = before.pop() if before and re.fullmatch(r"\w+", before[-1]) else ""
        history = [*before, *after]
        for length in (8, 6, 5, 4, 3, 2, *((1,) if begun else ())):
            ending = before[-length:]
            if len(ending) < length:
                continue
            for at in range(len(history) - length - 1, -1, -1):
                follows = history[at + length]
                if history[at : at + length] == ending and at + length != len(before) and follows.startswith(begun):
                    return limited([follows[len(begun) :], *history[at + length + 1 :]], several)
        return ""


def limited(found: list[str], several: bool) -> str:
    """The text up to the end of its first line, or of its third."""
    text = "".join(found[:200])
    return "\n".join(text.split("\n")[: 3 if several else 1])


class Ngram:
    """A 5-gram model with back-off, counted over the text around the cursor and the standard library."""

    name = "ngram"
    order = 5

    def edit(self, example: EditExample) -> str:
        lines = example.region.split("\n", 1)
        text = example.above + example.region + example.below
        written = self.write(words(text), words(lines[0] + "\n"), len(words(example.region)))
        return lines[0] + "\n" + written + END

    def fill(self, hole: Hole, several: bool) -> str:
        written = self.write(words(hole.prefix + hole.suffix), words(hole.prefix)[-self.order :], 60 if several else 25)
        return limited(words(written), several)

    def write(self, local: list[str], start: list[str], length: int) -> str:
        near = counts(local, self.order)
        history, out = list(start), []
        for _ in range(length):
            choice = next((c for n in range(self.order - 1, 0, -1) if (c := self.best(near, history, n))), None)
            if choice is None:
                break
            out.append(choice)
            history.append(choice)
        return "".join(out)

    def best(self, near: dict[tuple[str, ...], Counter[str]], history: list[str], n: int) -> str | None:
        key = tuple(history[-n:])
        found = near.get(key, Counter()) + Counter() or library(self.order).get(key, Counter())
        return found.most_common(1)[0][0] if found else None


def counts(tokens: list[str], order: int) -> dict[tuple[str, ...], Counter[str]]:
    table: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for at in range(1, len(tokens)):
        for n in range(1, min(order, at + 1)):
            table[tuple(tokens[at - n : at])][tokens[at]] += 1
    return table


@cache
def library(order: int) -> dict[tuple[str, ...], Counter[str]]:
    """Counts over a fixed set of standard-library modules."""
    table: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for name in LIBRARY:
        path = Path(sysconfig.get_paths()["stdlib"]) / f"{name}.py"
        if path.exists():
            for key, found in counts(words(path.read_text(encoding="utf-8")), order).items():
                table[key].update(found)
    return table
