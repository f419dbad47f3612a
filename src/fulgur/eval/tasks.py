"""The tasks for a model: edits, completions, and the file with a frozen set of them.

The set that ships, `model_tasks.jsonl.xz`, was made by `python -m lab.train tasks` from packages the models never saw.
Its first line names each package with version and licence text; every further line is one task.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fulgur.errors import FulgurError
from fulgur.text.edit_format import Answer, Call, NoEdit, RecentEdit, Rewrite

SHIPPED = Path(__file__).with_name("model_tasks.jsonl.xz")
FORMAT = 1
# The window is as large as the set, so that files shared by several tasks are stored once.
_XZ = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 64 << 20, "lc": 4, "lp": 0, "pb": 0, "nice_len": 273}]


@dataclass(frozen=True)
class EditExample:
    """One prompt and its answer, with the data to grade and group it."""

    op: str
    path: str
    above: str
    region: str
    below: str
    recent: tuple[RecentEdit, ...]
    instruction: str | None
    answer: Answer
    phrasing: str  # "op:index"; "" for next-edit examples
    heldout_phrasing: bool
    heldout_op: bool
    result: str | None = None  # the region after the call, if the answer is a call inside the region
    file: tuple[str, str] | None = None  # everything before and after the region in the file

    @property
    def target(self) -> str | None:
        """The expected region afterwards; None if nothing changes or the change is elsewhere."""
        return self.answer.text if isinstance(self.answer, Rewrite) else self.result

    @property
    def kind(self) -> str:
        return type(self.answer).__name__.lower()


@dataclass(frozen=True)
class Hole:
    """A completion: the hidden text, and the text before and after it."""

    path: str
    prefix: str
    suffix: str
    middle: str


@dataclass
class Tasks:
    """One set of tasks. `packages` lists the sources of the code: name, version, licence and its text."""

    edits: dict[str, list[EditExample]] = field(default_factory=dict)  # by split; answers are rewrites and calls
    noops: list[EditExample] = field(default_factory=list)
    next_edits: list[EditExample] = field(default_factory=list)
    single: list[Hole] = field(default_factory=list)
    multi: list[Hole] = field(default_factory=list)
    cursors: dict[str, list[Hole]] = field(default_factory=dict)  # by the place: see `cursors.py`
    packages: list[dict[str, str]] = field(default_factory=list)

    @property
    def size(self) -> int:
        edits = sum(len(found) for found in self.edits.values())
        cursors = sum(len(found) for found in self.cursors.values())
        return edits + len(self.noops) + len(self.next_edits) + len(self.single) + len(self.multi) + cursors

    def only(self, half: str | None) -> None:
        """Keep one half: "edits" or "completions"; None keeps both."""
        if half == "edits":
            self.single, self.multi, self.cursors = [], [], {}
        elif half == "completions":
            self.edits, self.noops, self.next_edits = {}, [], []


def write_tasks(tasks: Tasks, path: Path) -> None:
    """Write a set atomically."""
    partial = path.with_name(path.name + ".partial")
    with lzma.open(partial, "wt", filters=_XZ, encoding="utf-8") as out:
        for line in _lines(tasks):
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
    partial.replace(path)


def read_tasks(path: Path = SHIPPED) -> Tasks:
    """Read a set from its file; FulgurError when it is not one."""
    try:
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            head = json.loads(next(lines))
            if not isinstance(head, dict) or head.get("format") != FORMAT:
                raise FulgurError(f"{path}: not a set of tasks of format {FORMAT}", hint=_MAKE)
            tasks = Tasks({split: [] for split in head["splits"]}, packages=head["packages"])
            for line in lines:
                _add(tasks, json.loads(line))
    except FileNotFoundError:
        raise FulgurError(f"{path}: no such set of tasks", hint=_MAKE) from None
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise FulgurError(f"{path}: not a set of tasks: {error or 'it ends too early'}", hint=_MAKE) from None
    return tasks


_MAKE = "Make one in a checkout: `python -m lab.train tasks --source FOLDER --out FILE`."


def _lines(tasks: Tasks) -> Iterator[dict[str, Any]]:
    yield {"format": FORMAT, "splits": list(tasks.edits), "packages": tasks.packages}
    named = [(f"edit {split}", found) for split, found in tasks.edits.items()]
    for kind, examples in [*named, ("noop", tasks.noops), ("next", tasks.next_edits)]:
        for example in examples:
            row = {one.name: getattr(example, one.name) for one in fields(example)}
            row["recent"] = [asdict(edit) for edit in example.recent]
            yield {"kind": kind, **row, "answer": _answer_row(example.answer)}
    cursors = [(f"cursor {place}", found) for place, found in tasks.cursors.items()]
    for kind, holes in [("single", tasks.single), ("multi", tasks.multi), *cursors]:
        for hole in holes:
            yield {"kind": kind, **asdict(hole)}


def _add(tasks: Tasks, row: dict[str, Any]) -> None:
    kind, _, split = row.pop("kind").partition(" ")
    if kind == "cursor":
        tasks.cursors.setdefault(split, []).append(Hole(**row))
        return
    if kind in ("single", "multi"):
        (tasks.single if kind == "single" else tasks.multi).append(Hole(**row))
        return
    row["recent"] = tuple(RecentEdit(**edit) for edit in row["recent"])
    row["answer"] = _answer(row["answer"])
    row["file"] = row["file"] and tuple(row["file"])
    group = {"edit": tasks.edits.get(split, []), "noop": tasks.noops, "next": tasks.next_edits}[kind]
    group.append(EditExample(**row))


def _answer_row(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, Call):
        return {"call": answer.name, "args": list(answer.args)}
    return {"rewrite": answer.text} if isinstance(answer, Rewrite) else {}


def _answer(row: dict[str, Any]) -> Answer:
    if "call" in row:
        return Call(row["call"], tuple(row["args"]))
    return Rewrite(row["rewrite"]) if "rewrite" in row else NoEdit()
