"""Turn an answer into the new text of a file: apply a call, insert a rewrite, or refuse.

The answer comes from a model, or is the call that an instruction spells out (`plain/`). A model's answer that provably
does something else is refused. For a plain rename the exact refactoring replaces the model's rewrite; `note` says so
when the two differ.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from fulgur.edit.checks.names import new_problems
from fulgur.edit.narrow import narrowed
from fulgur.edit.refactor import LOCAL, OVER_PROJECT, RefactorError, apply_call
from fulgur.edit.refactor.meaning import MEANINGS, describe
from fulgur.edit.refactor.standard import unbound_annotations, with_imports
from fulgur.edit.refactor.verify import call_objection, objection, rename_asked, renamed_only, words
from fulgur.edit.region import Region
from fulgur.edit.unexpressed import unexpressed
from fulgur.edit.windows import picked
from fulgur.errors import FulgurError
from fulgur.text.edit_format import Answer, Call, NoEdit


class Refused(FulgurError):
    """The answer is not what was asked for; `message` says why. Nothing was changed."""


@dataclass(frozen=True)
class Outcome:
    """The whole file after the edit. `text` is None when nothing changes; `note` may say why."""

    text: str | None
    note: str = ""
    call: Call | None = None  # the refactoring that made it, if one did
    left: str = ""  # what a rename of a member did not touch in the file


def apply_answer(
    text: str, region: Region, answer: Answer, instruction: str, path: Path, *, guessed: bool = True
) -> Outcome:
    """Apply an answer; raises Refused, or RefactorError where a call cannot be applied.

    `guessed` False: the instruction itself spells the call out. Whether the new text parses and its names exist is
    left to `checks.check`.
    """
    outcome = _applied(text, region, answer, instruction, path, guessed=guessed)
    if outcome.text is not None and path.suffix in (".py", ".pyi"):
        full, added = with_imports(text, outcome.text, instruction)
        if missing := sorted(unbound_annotations(text, full) - {problem.name for problem in new_problems(text, full)}):
            raise Refused(f"there is no {missing[0]} in this file: import or define it first")
        note = f"Added: {', '.join(added)}." if added else ""
        outcome = Outcome(full, " ".join(filter(None, (outcome.note, note))), outcome.call, outcome.left)
    return outcome


def _applied(text: str, region: Region, answer: Answer, instruction: str, path: Path, *, guessed: bool) -> Outcome:
    if isinstance(answer, Call):
        _one_of_them(answer, instruction, region.text)
        if guessed and instruction:
            _may_be_meant(answer, instruction, text)
        if answer.name in OVER_PROJECT:
            _accounts_for(answer, instruction, region.text) if guessed else None
            return Outcome(text, call=answer)
        try:
            after = apply_call(text, answer, (region.start, region.end))
        except RefactorError as error:
            if "more than one" in error.message and (one := picked(region.text, answer, instruction)) is not None:
                after = text[: region.start] + one + text[region.end :]
                if guessed:
                    _accounts_for(answer, instruction, region.text, changed_words(text, after))
                return _outcome(text, after, "", answer)
            if guessed:
                _accounts_for(answer, instruction, region.text)
            if guessed and answer.name not in LOCAL:
                raise
            # Only the refactoring finds out whether there is anything to change.
            joined = ", which changes nothing here" if describe(answer) in error.message else f": {error.message}"
            return Outcome(None, f"it was read as “{describe(answer)}”{joined}" if guessed else error.message)
        if guessed:
            _accounts_for(answer, instruction, region.text, changed_words(text, after))
        meant = narrowed(answer, instruction, text, after, (region.start, region.end))
        if meant is None:
            raise Refused(f"“{describe(answer)}” would change lines other than the ones named")
        after = meant
        old = answer.args[0].rpartition(".")[2] if answer.name == "rename" and answer.args else ""
        return _outcome(text, after, "", answer, left_alone(text, after, old))
    if isinstance(answer, NoEdit) or not answer.text.strip() or answer.text == region.text:
        return Outcome(None)
    changed = text[: region.start] + fitted(answer.text, region.text) + text[region.end :]
    if path.suffix not in (".py", ".pyi") or not instruction:
        return _outcome(text, changed)
    renamed = rename_asked(instruction)
    if renamed is not None:
        return _renamed(text, region, answer.text, changed, renamed)
    if problem := objection(region.text, answer.text, instruction, text):
        raise Refused(problem)
    return _outcome(text, changed)


_ONE = {
    "remove_comments": ("comment", r"#"),
    "remove_prints": (r"print(?:\(\))?(?: statement| call| line)?", r"\bprint\("),
}


def _one_of_them(call: Call, instruction: str, region: str) -> None:
    """Refuse "the comment" or "the print" where there are several: it is unclear which."""
    word, code = _ONE.get(call.name, ("", ""))
    if word and re.search(rf"\b(?:the|this|that|a) {word}(?!\w)", instruction) and len(re.findall(code, region)) > 1:
        raise Refused(f"there is more than one {'comment' if 'comment' in word else 'print'} here")


def _may_be_meant(call: Call, instruction: str, file: str) -> None:
    """Refuse a guess that names what neither the instruction nor the file names."""
    if call.name not in MEANINGS:
        raise Refused("the model's answer is not an edit that Fulgur knows")
    if problem := call_objection(call, instruction, file):
        raise Refused(problem)


def _accounts_for(call: Call, instruction: str, region: str, changed: Collection[str] = ()) -> None:
    """Refuse a guess that leaves out a word of the instruction."""
    if instruction and (word := unexpressed(call, instruction, region, changed)):
        raise Refused(f"“{word}” would be left out: the model's guess was “{describe(call)}”")


def changed_words(before: str, after: str) -> set[str]:
    """The words of added and removed lines; a line whose indentation alone changed is neither."""
    one, two = ({line.strip() for line in text.split("\n")} for text in (before, after))
    return {word for line in one ^ two for word in words(line)}


def fitted(text: str, region: str) -> str:
    """The answer, ending as the region does: with the same trailing newlines."""
    return text.rstrip("\n") + region[len(region.rstrip("\n")) :] if text.strip() else text


def _outcome(before: str, after: str, note: str = "", call: Call | None = None, left: str = "") -> Outcome:
    return Outcome(None if after == before else after, note, call, left)


def _renamed(text: str, region: Region, rewrite: str, changed: str, names: tuple[str, str]) -> Outcome:
    """The exact rename; where the refactoring cannot do it, the model's rewrite if it changes only this name."""
    try:
        exact = apply_call(text, Call("rename", names), (region.start, region.end))
    except RefactorError as error:
        outside = text[: region.start] + "\n" + text[region.end :]
        if names[0] in words(outside) or not renamed_only(region.text, rewrite, *names):
            raise Refused(f"it does not just rename {names[0]} to {names[1]}, and {error.message}") from None
        return _outcome(text, changed)
    note = "" if exact == changed else "The rewrite did more than this rename, so the exact refactoring replaced it."
    return _outcome(text, exact, note, Call("rename", names), left_alone(text, exact, names[0]))


def left_alone(before: str, after: str, old: str) -> str:
    """A note on what a rename of a member did not touch: attributes of this name on objects of unknown class.

    Empty for anything but a member: a name without a dot is renamed everywhere it means the same."""
    try:
        found, earlier = (
            [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Attribute) and n.attr == old]
            for text in (after, before)
        )
    except (SyntaxError, RecursionError, ValueError):
        return ""
    defines = re.search(rf"^\s+(?:async )?def {re.escape(old)}\b", before, re.MULTILINE) if old else None
    if not found or not (defines or len(found) < len(earlier)):
        return ""
    places = ", ".join(f"`{ast.unparse(n)}` on line {n.end_lineno}" for n in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"Left unchanged: {places}{more}; the class of the object is unknown."
