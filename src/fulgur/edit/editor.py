"""The editor: locate → ask → apply → check → write or refuse. Commands, the agent and every other door use this.

    task = locate(parse_target("app.py:load"), "add type hints")
    result, answer = plan(task, Model())
    if isinstance(result, Proposal):
        write(result, home)

Who streams the answer, or asks a model in another way, sends `task.item()` and hands what it wrote to `propose`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fulgur.edit.answer import Refused, apply_answer
from fulgur.edit.checks import NAMES, PARSES, Found, check
from fulgur.edit.document import Document
from fulgur.edit.project.follow import followed, orphans, project_root
from fulgur.edit.refactor import RefactorError
from fulgur.edit.region import Region, Target, locate_region
from fulgur.text.edit_format import Call, RecentEdit
from fulgur.workspace.files import Change
from fulgur.workspace.words import code_words

if TYPE_CHECKING:
    from fulgur.edit.checks.members.process import MemberCheck
    from fulgur.edit.model import Answer
    from fulgur.workspace.files import FileDiff
    from fulgur.workspace.journal import EditJournal

AS_ASKED, NOTHING = "as asked", "nothing to do"

Others = tuple[tuple[Document, str], ...]


@dataclass(frozen=True)
class Task:
    """One edit: the part of a file, and what to change; without an instruction, what follows from `recent`."""

    document: Document
    region: Region
    instruction: str | None
    recent: Sequence[RecentEdit] = ()
    root: Path | None = None  # the project, into whose other files a refactoring is followed; None: this file alone

    def item(self) -> dict[str, Any]:
        """What the model is asked: the server's input item `edit`."""
        region = self.region
        item: dict[str, Any] = {"type": "edit", "path": self.document.name, "region": region.text}
        item |= {"above": region.above, "below": region.below}
        if self.instruction is not None:
            item["instruction"] = self.instruction
        if self.recent:
            item["recent"] = [{"before": edit.before, "after": edit.after} for edit in self.recent]
        return item


@dataclass(frozen=True)
class Proposal:
    """The file's new text, which passed the checks; `notes` say what a person should know of it.

    `others` are the files that change with it, each with its new text.
    """

    document: Document
    text: str
    notes: tuple[str, ...] = ()
    found: Found = field(default_factory=Found)
    others: Others = ()

    def changes(self) -> list[Change]:
        """Every file that changes, as bytes before and after; the one that was named comes first."""
        documents = [(self.document, self.text), *self.others]
        return [Change(document.path, document.data, document.encode(text)) for document, text in documents]


@dataclass(frozen=True)
class Refusal:
    """Nothing is changed: `reason` says why, `check` which step refused, `found` what the checks saw."""

    check: str
    reason: str
    found: Found = field(default_factory=Found)


class Rewriter(Protocol):
    """A model that answers an `edit` item (`edit.model.Model`)."""

    def rewrite(self, item: dict[str, Any]) -> Answer: ...


def locate(target: Target, instruction: str) -> Task:
    """The task that a person named on the command line."""
    document = Document.open(target.path)
    region = locate_region(document.text, target, instruction)
    return Task(document, region, instruction, root=project_root(target.path))


def plan(task: Task, model: Rewriter, members: MemberCheck | None = None) -> tuple[Proposal | Refusal, Answer]:
    """Ask the model, apply its answer and check it; nothing is written."""
    answer = model.rewrite(task.item())
    if not answer.finished:
        return Refusal(AS_ASKED, "it was cut off"), answer
    return propose(task, answer.text, members), answer


def propose(task: Task, said: str, members: MemberCheck | None = None, *, checked: bool = True) -> Proposal | Refusal:
    """The new text that the model's words come to; `checked` False applies them whatever they break."""
    document, instruction = task.document, task.instruction or ""
    try:
        outcome = apply_answer(document.text, task.region, said, instruction, document.path)
    except (Refused, RefactorError) as error:
        return Refusal(AS_ASKED, error.message)
    if outcome.text is None:
        return Refusal(NOTHING, outcome.note)
    notes: tuple[str, ...] = (outcome.note,) if outcome.note else ()
    text: str = outcome.text
    others: Others = ()
    if task.root is not None and document.path.suffix == ".py":
        try:
            text, others, more = _elsewhere(task, task.root, outcome.text, outcome.call)
        except (Refused, RefactorError) as error:
            return Refusal(AS_ASKED, error.message)
        notes += more
    if not checked:
        return Proposal(document, text, notes, others=others)
    asked = {word for code in code_words(instruction) for word in re.findall(r"\w+", code)}
    result = verified(document, text, asked, notes, members)
    if isinstance(result, Refusal):
        return result
    for other, changed in others:
        if isinstance(wrong := verified(other, changed, asked), Refusal):
            return Refusal(wrong.check, f"{other.name}: {wrong.reason}", wrong.found)
    return replace(result, others=others)


def _elsewhere(task: Task, root: Path, text: str, call: Call | None) -> tuple[str, Others, tuple[str, ...]]:
    """The file's text, the other files that change with it, and notes on places that were left alone."""
    document, path = task.document, task.document.path.resolve()
    at = (task.region.start, task.region.end)
    changed = followed(root, path, document.text, text, call, at) if call is not None else None
    if changed is None:
        if lost := orphans(root, path, document.text, text):
            raise Refused(f"{lost[0]}{f' (and {len(lost) - 1} more)' if len(lost) > 1 else ''}")
        return text, (), ()
    text = changed.files.pop(path, (text, text))[1]
    others = tuple((Document.beneath(root, other), after) for other, (_, after) in sorted(changed.files.items()))
    if not changed.unsure:
        return text, others, ()
    places = [f"{place.path.relative_to(root.resolve())}:{place.line}" for place in changed.unsure]
    more = f" and {len(places) - 5} more" if len(places) > 5 else ""
    return text, others, (f"May be meant too, and left as it is: {', '.join(places[:5])}{more}.",)


def verified(
    document: Document,
    text: str,
    asked: Collection[str],
    notes: tuple[str, ...] = (),
    members: MemberCheck | None = None,
) -> Proposal | Refusal:
    """A new text, refused when the checks find that it breaks something.

    What the person spelt out (`asked`) is wanted, although it may not be there yet: noted, but no reason to refuse.
    """
    found = check(document.path, document.text, text, members)
    if found.parses:
        return Refusal(PARSES, f"it does not parse ({found.parses[0]})", found)
    wrong = [p for p in found.names if p.certain or not set(asked).issuperset(re.findall(r"\w+", p.name))]
    if wrong:
        return Refusal(NAMES, str(wrong[0]), found)
    notes += tuple(f"Not there yet: {problem}." for problem in found.names)
    if found.unchecked:
        notes += (f"Attributes and parameters in {document.name} were not all checked: {found.unchecked}.",)
    return Proposal(document, text, notes, found)


def write(proposal: Proposal, journal: EditJournal) -> list[FileDiff]:
    """Change the files, all or none; `journal.undo` takes them back byte for byte."""
    return journal.write(proposal.changes())


def member_check(path: Path, home: Path) -> MemberCheck:
    """The check of members for a command: it reads the project that the file belongs to."""
    from fulgur.config.settings import find_project
    from fulgur.edit.checks.members.process import MemberCheck
    from fulgur.sandbox.policy import Policy

    return MemberCheck(Policy.make("read-only", find_project(path.resolve().parent, home), home))
