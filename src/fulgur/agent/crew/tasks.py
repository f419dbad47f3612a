"""A task list in Markdown: what is to be done, by which model, and what waits for what.

    - [ ] [DEEP] design the cache #design
      what stands under a task, further in, belongs to it
      - [ ] [FAST] rename Store to Cache          waits for the task it stands under
    - [ ] [FAST] add a docstring to load()        after: #design, 2
    - [x] done    - [!] failed: tried again by the next run

The file is the truth: marks are the only thing that is ever changed in it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fulgur.errors import UsageError

_HINT = "`/plan WISH`, or `fulgur tasks plan WISH`, writes one."
_LINE = re.compile(r"(?P<indent>[ \t]*)[-*] \[(?P<mark>[ xX!])\] +(?:\[(?P<tag>[\w.:/-]+)\] +)?(?P<text>\S.*)")
_AFTER = re.compile(r"[\s(,;]*\bafter:\s*(?P<refs>#?[\w-]+(?:\s*,\s*#?[\w-]+)*)\)?\s*$")
_NAME = re.compile(r"(?:^|\s)#(?P<name>[\w-]+)")

Key = tuple[str, int]


@dataclass
class Task:
    """One item. `key` finds it again after the file was edited: its text, and its number among equal texts."""

    number: int
    line: int
    text: str
    mark: str
    key: Key
    tag: str = ""
    name: str = ""
    details: list[str] = field(default_factory=list)
    after: set[int] = field(default_factory=set)

    @property
    def done(self) -> bool:
        return self.mark in "xX"

    @property
    def prompt(self) -> str:
        """What the model is asked to do."""
        return "\n".join([self.text, *self.details])


def parse_tasks(text: str, where: str) -> list[Task]:
    """Parse the tasks of a list, in order; UsageError if one waits for a task that does not exist, or for itself."""
    tasks: list[Task] = []
    above: list[tuple[int, Task]] = []
    wanted: list[tuple[Task, str]] = []
    seen: Counter[str] = Counter()
    for index, line in enumerate(text.splitlines()):
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            if above and line.strip() and _width(line) > above[-1][0]:
                above[-1][1].details.append(line.strip())
            elif line.strip():
                above = []  # a heading or a paragraph ends the list
            continue
        indent = _width(line)
        above = [(width, task) for width, task in above if width < indent]
        words = match["text"].strip()
        seen[words] += 1
        task = Task(len(tasks) + 1, index, words, match["mark"], (words, seen[words]), match["tag"] or "")
        if after := _AFTER.search(words):
            wanted += [(task, ref.strip()) for ref in after["refs"].split(",")]
            task.text = words[: after.start()].rstrip()
        if name := _NAME.search(task.text):
            task.name = name["name"]
            task.text = (task.text[: name.start()] + task.text[name.end() :]).strip()
        if above:
            task.after.add(above[-1][1].number)
        above.append((indent, task))
        tasks.append(task)
    for task, ref in wanted:
        task.after.add(_resolve(tasks, task, ref, where))
    _no_circles(tasks, where)
    return tasks


def marked(text: str, key: Key, mark: str) -> str:
    """Return the list with one task's mark replaced; unchanged if the task is gone."""
    lines = text.splitlines(keepends=True)
    seen: Counter[str] = Counter()
    for index, line in enumerate(lines):
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            continue
        words = match["text"].strip()
        seen[words] += 1
        if (words, seen[words]) == key:
            place = match.start("mark")
            lines[index] = line[:place] + mark + line[place + 1 :]
            break
    return "".join(lines)


def read_list(path: Path) -> str:
    """Read the file's text."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint=_HINT) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text") from None


def _width(line: str) -> int:
    lead = line[: len(line) - len(line.lstrip())]
    return len(lead.expandtabs(4))


def _resolve(tasks: list[Task], task: Task, ref: str, where: str) -> int:
    for other in tasks:
        if ref in (str(other.number), f"#{other.name}" if other.name else ""):
            return other.number
    names = ", ".join(f"#{other.name}" for other in tasks if other.name) or "none has a #name"
    raise UsageError(
        f"{where}, line {task.line + 1}: after: there is no task {ref}",
        hint=f"Tasks: 1 to {len(tasks)}, or by name: {names}",
    )


def _no_circles(tasks: list[Task], where: str) -> None:
    open_tasks = {task.number: task for task in tasks}
    while free := [number for number, task in open_tasks.items() if not task.after & open_tasks.keys()]:
        for number in free:
            del open_tasks[number]
    if open_tasks:
        first = next(iter(open_tasks.values()))
        raise UsageError(
            f"{where}, line {first.line + 1}: {first.text!r} waits for itself (its `after:` leads back to it)"
        )
