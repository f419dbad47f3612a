"""The editor: locate → read or ask → apply → check → write or refuse. Commands, the agent and the server use this.

    task = locate(parse_target("app.py:load"), "add type hints")
    result, answer = plan(task, Model())
    if isinstance(result, Proposal):
        write(result, home)

A caller that streams the answer, or queries a model in another way, first tries `task.spelled_out()`, then sends
`task.item()` and passes the model's answer and its probability to `propose`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fulgur.edit.answer import Refused, apply_answer
from fulgur.edit.checks import NAMES, PARSES, Found, check
from fulgur.edit.document import Document
from fulgur.edit.plain import core, read
from fulgur.edit.plain.no_edit import NoEditMeant, no_edit
from fulgur.edit.plain.place import Place
from fulgur.edit.plain.steps import Steps, shifted
from fulgur.edit.project.follow import followed, module_names, orphans, project_root
from fulgur.edit.refactor import EVERYWHERE, OVER_PROJECT, RefactorError
from fulgur.edit.refactor.meaning import MEANINGS, describe
from fulgur.edit.refactor.source import Unusable
from fulgur.edit.refactor.verify import rename_asked, words
from fulgur.edit.region import Region, Target, context, locate_region, without_docstring
from fulgur.errors import FulgurError
from fulgur.text.edit_format import Call, NoEdit, RecentEdit, Rewrite, parse_answer
from fulgur.workspace.files import Change
from fulgur.workspace.words import code_words

if TYPE_CHECKING:
    from fulgur.edit.checks.members.problem import Problem
    from fulgur.edit.checks.members.process import MemberCheck
    from fulgur.edit.model import Answer
    from fulgur.workspace.files import FileDiff
    from fulgur.workspace.journal import EditJournal

AS_ASKED, NOTHING = "as asked", "nothing to do"
# Calls below this probability are not shown (`fulgur eval edits`: chosen on four packages, confirmed on four others).
MIN_PROBABILITY = 0.5

Others = tuple[tuple[Document, str], ...]


@dataclass(frozen=True)
class Task:
    """One edit: the part of a file and what to change. Without an instruction: whatever follows from `recent`."""

    document: Document
    region: Region
    instruction: str | None
    recent: Sequence[RecentEdit] = ()
    root: Path | None = None  # the project whose other files a refactoring also changes; None: this file alone
    shown: str = ""  # the shortened text a model sees of a region that is too long; a rewrite of it cannot be applied

    def spelled_out(self) -> Call | None:
        """The refactoring that the instruction spells out, or `NoEditMeant` when it asks for no edit.

        None when a model has to read it."""
        if self.instruction is None:
            return None
        text, region = self.document.text, self.region
        python = self.document.path.suffix in (".py", ".pyi")
        if python and (call := read(self.instruction, region, text)) is not None:
            return call
        place = Place(region.text, text, region.named)
        why = no_edit(core(self.instruction), self.document.name, place)
        return NoEditMeant("no_edit", (), why) if why is not None else None

    def item(self) -> dict[str, Any]:
        """The request to the model: the server's input item `edit`."""
        region = self.region
        item: dict[str, Any] = {"type": "edit", "path": self.document.name, "region": self.shown or region.text}
        item |= {"above": region.above, "below": region.below}
        if self.instruction is not None:
            item["instruction"] = self.instruction
        if self.recent:
            item["recent"] = [{"before": edit.before, "after": edit.after} for edit in self.recent]
        return item


@dataclass(frozen=True)
class Proposal:
    """The file's new text, which passed the checks; `notes` are remarks for the user.

    `understood` says in a few words how the instruction was read. `others` are the other files that change, each with
    its new text.
    """

    document: Document
    text: str
    notes: tuple[str, ...] = ()
    found: Found = field(default_factory=Found)
    others: Others = ()
    understood: str = ""

    def changes(self) -> list[Change]:
        """Every file that changes, as bytes before and after; the named file comes first."""
        documents = [(self.document, self.text), *self.others]
        return [
            Change(document.path, None if document.fresh else document.data, document.encode(text))
            for document, text in documents
        ]


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
    """The task that the user named on the command line."""
    return task_at(Document.open(target.path), target, instruction, project_root(target.path))


def task_at(document: Document, target: Target, instruction: str, root: Path | None) -> Task:
    """The task for a target in a file; raises when the region is too large for a model."""
    try:
        region = locate_region(document.text, target, instruction)
    except FulgurError:
        # Too large for a model, but not for a refactoring that the instruction spells out.
        task = Task(document, locate_region(document.text, target, instruction, limit=False), instruction, root=root)
        call = task.spelled_out()
        if isinstance(call, NoEditMeant):
            return task
        named = call.args[0].lstrip("@") if call is not None and call.args else ""
        defined = re.findall(rf"^\s*(?:(?:async )?def|class) {re.escape(named)}\b", document.text, re.MULTILINE)
        if (
            call is None
            and target.symbol
            and document.path.suffix == ".py"
            and (shown := without_docstring(task.region))
        ):
            return replace(task, shown=shown)
        whole = call is not None and call.name in EVERYWHERE
        if call is None or not (target.symbol or target.lines or len(defined) == 1 or whole):
            raise
        return task
    return Task(document, region, instruction, root=root)


def plan(task: Task, model: Rewriter, members: MemberCheck | None = None) -> tuple[Proposal | Refusal, Answer | None]:
    """Read the instruction or ask the model, apply the answer and check it; nothing is written.

    The second value is the model's answer; None when the model was not queried.
    """
    if (call := task.spelled_out()) is not None:
        return propose(task, call, members), None
    answer = model.rewrite(task.item())
    if not answer.finished:
        return Refusal(AS_ASKED, "the model's answer was cut off"), answer
    return propose(task, answer.text, members, probability=answer.probability), answer


def propose(
    task: Task,
    said: str | Call,
    members: MemberCheck | None = None,
    *,
    probability: float | None = None,
    checked: bool = True,
) -> Proposal | Refusal:
    """Apply a model's answer, or a call that the instruction spells out, and check the result.

    A call that the model itself finds unlikely is refused. `checked` False skips the checks.
    """
    document, instruction = task.document, task.instruction or ""
    answer = parse_answer(said) if isinstance(said, str) else said
    guessed = isinstance(said, str)
    if isinstance(answer, NoEditMeant):
        return Refusal(NOTHING, answer.why)
    if isinstance(answer, (Call, NoEdit)) and document.path.suffix not in (".py", ".pyi"):
        kind = f"{document.path.suffix} files" if document.path.suffix else document.path.name
        return Refusal(AS_ASKED, f"the embedded model edits only Python, not {kind}")
    if guessed and (missing := not_there(instruction, document)):
        return Refusal(AS_ASKED, missing)
    if guessed and isinstance(answer, Call) and probability is not None and probability < MIN_PROBABILITY:
        return Refusal(AS_ASKED, unsure(answer))
    if isinstance(answer, Steps):
        return _in_steps(task, answer, members, checked=checked)
    if isinstance(answer, Rewrite) and task.shown:
        return Refusal(AS_ASKED, "this part is too long to rewrite; name a smaller one")
    try:
        outcome = apply_answer(document.text, task.region, answer, instruction, document.path, guessed=guessed)
    except (Refused, RefactorError) as error:
        return Refusal(AS_ASKED, error.message)
    if outcome.text is None:
        return Refusal(NOTHING, outcome.note or "the model found no edit for this instruction")
    notes: tuple[str, ...] = (outcome.note,) if outcome.note else ()
    text: str = outcome.text
    others: Others = ()
    if task.root is None and outcome.call is not None and outcome.call.name in OVER_PROJECT:
        return Refusal(
            AS_ASKED, f"“{describe(outcome.call)}” needs the project's other files, and only this file is available"
        )
    if task.root is not None and document.path.suffix == ".py":
        try:
            text, others, more = _elsewhere(task, task.root, outcome.text, outcome.call)
        except (Refused, RefactorError) as error:
            return Refusal(AS_ASKED if guessed else NOTHING, error.message)
        except Unusable as error:
            return Refusal(AS_ASKED, f"it cannot be done in every file: {error}")
        notes += more or ((outcome.left,) if outcome.left and text == outcome.text else ())
    elif outcome.left:
        notes += (outcome.left,)
    understood = describe(outcome.call) if outcome.call is not None and outcome.call.name in MEANINGS else ""
    if not checked:
        return Proposal(document, text, notes, others=others, understood=understood)
    asked = {word for code in code_words(instruction) for word in re.findall(r"\w+", code)}
    if outcome.call is not None and outcome.call.name == "replace_text":
        asked = set()  # a name that replaces working code must already exist
    return _all_verified(document, text, asked, notes, members, others, understood)


def _in_steps(task: Task, steps: Steps, members: MemberCheck | None, *, checked: bool) -> Proposal | Refusal:
    """Apply the parts of an instruction in order; all of them or none."""
    document, text = task.document, task.document.text
    at = (task.region.start, task.region.end)
    changed: dict[Path, tuple[Document, str]] = {}
    notes: tuple[str, ...] = ()
    for said, call in steps.parts:
        above, below = context(text, *at)
        region = Region(*at, above, text[slice(*at)], below, text[: at[0]].count("\n") + 1, text[: at[1]].count("\n"))
        try:
            outcome = apply_answer(text, region, call, said, document.path, guessed=False)
            if outcome.text is None:
                return Refusal(NOTHING, outcome.note or f"“{describe(call)}” changes nothing here")
            after: str = outcome.text
            found: Others = ()
            more: tuple[str, ...] = ()
            if task.root is not None and document.path.suffix == ".py":
                earlier = {document.path.resolve(): text} | {path: new for path, (_, new) in changed.items()}
                step = replace(task, document=replace(document, text=text), region=region)
                after, found, more = _elsewhere(
                    step, task.root, outcome.text, call, earlier if text != document.text else None
                )
        except (Refused, RefactorError) as error:
            return Refusal(NOTHING, f"“{describe(call)}”: {error.message}")
        except Unusable as error:
            return Refusal(AS_ASKED, f"it cannot be done in every file: {error}")
        for other, new in found:
            path = other.path.resolve()
            changed[path] = (changed[path][0] if path in changed else other, new)
        notes += (*((outcome.note,) if outcome.note else ()), *more)
        at, text = shifted(text, after, at), after
    understood = ", then ".join(describe(call) for _, call in steps.parts)
    others = tuple(changed.values())
    if not checked:
        return Proposal(document, text, notes, others=others, understood=understood)
    asked = {word for code in code_words(task.instruction or "") for word in re.findall(r"\w+", code)}
    return _all_verified(document, text, asked, notes, members, others, understood)


def _all_verified(
    document: Document,
    text: str,
    asked: Collection[str],
    notes: tuple[str, ...],
    members: MemberCheck | None,
    others: Others,
    understood: str,
) -> Proposal | Refusal:
    """The edit of all its files, refused when the checks find a problem in one of them."""
    result = verified(document, text, asked, notes, members, names_added(others))
    if isinstance(result, Refusal):
        return result
    for other, changed in others:
        if isinstance(wrong := verified(other, changed, asked), Refusal):
            return Refusal(wrong.check, f"{other.name}: {wrong.reason}", wrong.found)
    return replace(result, others=others, understood=understood)


def not_there(instruction: str, document: Document) -> str | None:
    """Why a plain rename is impossible: the file has no such name; None when it has, or for other instructions."""
    asked = rename_asked(instruction) if document.path.suffix in (".py", ".pyi") else None
    known = set(words(document.text))
    if asked is None or asked[0] in known:
        return None
    close = difflib.get_close_matches(asked[0], sorted(known), n=1)
    return f"there is no {asked[0]} in {document.path.name}{f' (nearest: {close[0]})' if close else ''}"


def unsure(call: Call) -> str:
    """Why a guess with a low probability is not shown."""
    guess = f" (the model's guess was “{describe(call)}”)" if call.name in MEANINGS else ""
    if call.name == "add_docstring":  # the intent is clear, but the wording is the model's own
        return f'the model is not sure of the wording{guess}: give it, as in “add the docstring "…"”'
    return f"it is not clear what is meant{guess}"


def _elsewhere(
    task: Task, root: Path, text: str, call: Call | None, earlier: Mapping[Path, str] | None = None
) -> tuple[str, Others, tuple[str, ...]]:
    """The file's new text, the other files that change, and notes on places that were left alone."""
    document, path = task.document, task.document.path.resolve()
    at = (task.region.start, task.region.end)
    changed = followed(root, path, document.text, text, call, at, earlier) if call is not None else None
    if changed is None:
        if lost := orphans(root, path, document.text, text):
            raise Refused(f"{lost[0]}{f' (and {len(lost) - 1} more)' if len(lost) > 1 else ''}")
        return text, (), ()
    text = changed.files.pop(path, (text, text))[1]
    others = tuple(
        (Document.beneath(root, other) if other.exists() else Document.new(root, other), after)
        for other, (_, after) in sorted(changed.files.items())
    )
    if not changed.unsure:
        return text, others, ()
    places = [f"{place.path.relative_to(root.resolve())}:{place.line}" for place in changed.unsure]
    more = f" and {len(places) - 5} more" if len(places) > 5 else ""
    return text, others, (f"Possible other uses, left unchanged: {', '.join(places[:5])}{more}.",)


def verified(
    document: Document,
    text: str,
    asked: Collection[str],
    notes: tuple[str, ...] = (),
    members: MemberCheck | None = None,
    added: Collection[str] = (),
) -> Proposal | Refusal:
    """The new text as a proposal, or a refusal when the checks find a problem.

    Names that the user spelt out (`asked`) may not exist yet: they are noted, not refused. Names that other files of
    the same edit add (`added`) are not on disk yet, and no problem.
    """
    found = check(document.path, document.text, text, members)
    found.names = unresolved(found.names, added)
    if found.parses:
        return Refusal(PARSES, f"the result does not parse ({found.parses[0]})", found)
    wrong = [p for p in found.names if p.certain or not set(asked).issuperset(re.findall(r"\w+", p.name))]
    if wrong:
        return Refusal(NAMES, str(wrong[0]), found)
    notes += tuple(f"Not defined yet: {problem}." for problem in found.names)
    return Proposal(document, text, notes, found)


def names_added(others: Others) -> set[str]:
    """The names that the other files of an edit add: new modules, and new names in modules."""
    found: set[str] = set()
    for document, text in others:
        fresh = module_names(text) - module_names(document.text)
        if fresh:
            found |= fresh | set(document.path.with_suffix("").parts)
    return found


def unresolved(problems: list[Problem], added: Collection[str]) -> list[Problem]:
    """The problems that remain once the other files are written too."""
    return [p for p in problems if p.certain or not set(added).issuperset(re.findall(r"\w+", p.name))]


def write(proposal: Proposal, journal: EditJournal) -> list[FileDiff]:
    """Write the files, all or none; `journal.undo` restores them byte for byte."""
    return journal.write(proposal.changes())


def member_check(path: Path, home: Path) -> MemberCheck:
    """The member check for a command; it reads the project that the file belongs to."""
    from fulgur.config.settings import find_project
    from fulgur.edit.checks.members.process import MemberCheck
    from fulgur.sandbox.policy import Policy

    return MemberCheck(Policy.make("read-only", find_project(path.resolve().parent, home), home))
