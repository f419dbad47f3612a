"""Instructions that ask for no change of code: delete, move or run a file, undo an edit, or nothing specific.

Each is answered with what the user can do instead. No model is queried, because it would guess at an edit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from fulgur.edit.plain.place import Place
from fulgur.edit.verbs import CHANGE, CREATE, DELETE, FORMAT, MOVE, OPEN, RUN, SPLIT, UNDO, VAGUE
from fulgur.text.edit_format import Call


@dataclass(frozen=True)
class NoEditMeant(Call):
    """Takes the place of a call; `why` says why there is no edit to make."""

    why: str = ""


_ART = r"(?:the|this|that|my|our|an?|whole|entire|complete|current|new|another|empty|python|source)"
_KIND = r"(?:file|module|script|program|package|folder|directory|document|project|repo|repository)s?"
_ALL_OF = r"(?:(?:all|the contents?|everything) (?:of|in) )?"
_FILE = re.compile(rf"{_ALL_OF}(?:{_ART} )*(?:(?P<kind>{_KIND})(?: |$))?(?P<rest>.*)", re.IGNORECASE)
_BARE = re.compile(rf"{_ALL_OF}(?:{_ART} ?)*(?:{_KIND})?", re.IGNORECASE)
_EXTENSIONS = "py pyi js ts jsx tsx md rst txt json toml yaml yml cfg ini html css csv sh ipynb"
_LEFT = rf"(?:{_ART} )*(?:code|contents?|rest|stuff|thing|lot|source)"
_IT = (
    rf"|it|this|that|these|those|them|everything|all(?: of (?:it|this|them|that))?|anything|something|stuff|things?|"
    rf"here|{_LEFT}|all (?:of )?{_LEFT}"
)
_FUNCTION = r"(?:this|the) (?:function|method|class)"
_TESTS = r"(?:(?:all|the|my|our|unit) )*tests?(?: suite)?"
_LAST = (
    r"(?:(?:the|my|your|that|this|all) )*(?:(?:last|latest|previous|recent) )?(?:edit|change|commit|modification)s?|"
    r"(?:to )?(?:the )?(?:last|previous) (?:version|state|commit)"
)
# Adverbs and places that name nothing specific.
_HOW = (
    r"(?:[ ,]*(?:completely|entirely|altogether|totally|again|now|up|away|(?:in|from|of) (?:it|this|here)|"
    r"from (?:the )?(?:disk|project|repo|repository|folder|git)))*"
)
_TO = r"(?: ?(?:to|into|in|as|with|using|under|for|->|=>|→) .+)?"
_AND = r"(?:(?:,| and) .+)?"
_MAKE = rf"{CREATE}|(?:make|write|add)(?= (?:an?|new|another) )"  # "write the file with …" is about code
NO_FILES_MOVED = (
    "the editor does not rename or move files; “move NAME to MODULE” moves a function or class to another module, "
    "“rename NAME to NEW” renames it, and both update its importers"
)
CHANGES_ONLY = "the editor only changes code; for anything else use the shell or an agent with tools"
FORMATTER = "the editor does not format files; use a formatter, such as `ruff format {}`"
UNDOES = (
    "`/undo` undoes the last turn of a session that changed files; `fulgur edit --undo` undoes the last edit that was "
    "written with `--write`"
)
# Verbs, what may follow the file, and the answer.
_OF_FILES = (
    (DELETE, _AND, "the editor does not delete or empty files; use `rm {}`, or an agent with tools"),
    (MOVE, _TO, NO_FILES_MOVED),
    (_MAKE, r"(?: (?:called|named|with|for) .+)?", "the editor does not create files; an agent with tools can"),
    (SPLIT, _AND + _TO, "the editor does not split or merge files; “move NAME to MODULE” moves what they define"),
    (RUN, _TO, CHANGES_ONLY),
    (FORMAT, _TO, FORMATTER),
    (UNDO, "", UNDOES),
)
# Verbs, their objects, and the answer.
_OF_ALL = (
    (RUN, rf"{_IT}|{_FUNCTION}|{_TESTS}", CHANGES_ONLY),
    (FORMAT, rf"{_IT}|{_FUNCTION}", FORMATTER),
    (UNDO, rf"{_IT}|{_LAST}", UNDOES),
)


def bare(said: str) -> bool:
    """Whether words name nothing to change: a bare verb, or one followed by "the file"."""
    behind = _behind(VAGUE, said)
    return behind is not None and _BARE.fullmatch(behind) is not None


_NOWHERE = Place("", "")


def no_edit(said: str, path: str = "", place: Place = _NOWHERE) -> str | None:
    """Why an instruction asks for no edit of this place of a file; None when it may ask for one."""
    said = said.rstrip(".!? ")
    whole = place.region == place.file
    for verbs, more, why in _OF_FILES:
        if name := _file(said, verbs, more, path, place):
            return why.format(name)
    if _path(_behind(OPEN, said) or "", path, place):
        return CHANGES_ONLY
    if whole and re.fullmatch(rf"(?:{MOVE})(?: (?:it|this|that))?(?: itself)? (?:to|into|as) \S+", said, re.IGNORECASE):
        return NO_FILES_MOVED
    for verbs, things, why in _OF_ALL:
        if _of(things, verbs, said):
            return why.format(PurePosixPath(path).name or "FILE")
    if not place.named and _of(_IT, DELETE, said):
        return f"“{said}” does not say what: name it, as in “delete the function load”"
    if whole and (_of(_IT, VAGUE, said) or _file(said, CHANGE, "", path, place)):
        return f"“{said}” does not say what to change, or where: name both, as in “add type hints to load”"
    return None


def _behind(verbs: str, said: str) -> str | None:
    """The text after one of these verbs; None if the words begin otherwise."""
    match = re.match(rf"(?:{verbs})(?=\s|$)", said, re.IGNORECASE)
    return said[match.end() :].strip() if match else None


def _of(things: str, verbs: str, said: str) -> bool:
    """Whether words consist of one of these verbs and one of these things."""
    behind = _behind(verbs, said)
    return behind is not None and re.fullmatch(rf"(?:{things}){_HOW}", behind, re.IGNORECASE) is not None


def _file(said: str, verbs: str, more: str, path: str, place: Place) -> str:
    """The name of the file that follows one of these verbs, or an empty text. `more` is what may follow the file."""
    match = _FILE.fullmatch(_behind(verbs, said) or "")
    if match is None or not match[0]:
        return ""
    kind, (first, space, after) = match["kind"], match["rest"].partition(" ")
    name = first.strip("`'\"@,").removeprefix("./")
    if _path(name, path, place):
        tail = f"{',' if first.endswith(',') else ''}{space}{after}"
    elif not kind or (place.named and place.region != place.file) or re.search(rf"\b{kind}\b", place.file):
        return ""  # a `file` in the code may be meant
    else:
        name, tail = PurePosixPath(path).name or "FILE", f" {match['rest']}".rstrip()
    return name if re.fullmatch(rf"{_HOW}{more}", tail, re.IGNORECASE) else ""


def _path(word: str, path: str, place: Place) -> bool:
    """Whether a word is the path of the file, or looks like another path that the code does not mention."""
    if word and (word == path or word == PurePosixPath(path).name):
        return True
    extension = re.fullmatch(r"[\w./-]*\w\.(\w+)", word)
    known = extension is not None and extension[1].lower() in _EXTENSIONS.split()
    return (known or re.fullmatch(r"[\w.-]+(?:/[\w.-]+)*/", word) is not None) and word not in place.file
