"""The first screen: which model answers, what it can do, and three things to try in this folder."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from fulgur.errors import FulgurError
from fulgur.protocol.session import Status
from fulgur.ui.tui.blocks import wrapped
from fulgur.ui.tui.theme import Row
from fulgur.workspace import beneath
from fulgur.workspace.ignore import walk

if TYPE_CHECKING:
    from fulgur.agent.agent import Agent
    from fulgur.ui.tui.app import Tui

_LISTED = 5000  # files whose names are looked at
_FILES = 400  # of these, read for something to name
_BYTES = 60_000  # read of each file
# A top-level function with its parameters in one row and no stars: any of the edits below can be made.
_FUNCTION = re.compile(r"^def ([a-z][a-z0-9_]{2,30})\([^*()\n]*\)", re.MULTILINE)
_DEFINED = re.compile(r"^\s*(?:async )?(?:def|class) (\w+)", re.MULTILINE)
_TEST = re.compile(r"(?:^|/)(?:tests?/|test_|conftest)")
_CODE = re.compile(r"\.(?:py|pyi|js|jsx|ts|tsx|go|rs|c|h|cc|cpp|hpp|java|kt|rb|php|cs|swift|scala|lua)$")
# Files beside a project's own code: their functions are suggested only if there are no others.
_AUXILIARY = re.compile(
    r"(?:^|/)(?:docs?|examples?|samples?|demos?|bench(?:marks?|es)?)/"
    r"|^(?:scripts?|tools?|bin|ci|\.[^/]*)/"
    r"|^(?:setup|noxfile|tasks|fabfile|conf)\.py$"
)


def greet(tui: Tui, agent: Agent) -> None:
    """Say which model answers; if nothing was ever asked in this folder, also suggest what to try."""
    from fulgur.agent.route.relay import AUTO

    status, settings = agent.status(), agent.settings
    if status.turns:
        return  # the resumed session shows its own first screen again
    fast, deep = settings.text("router.fast"), settings.text("router.deep")
    tui.say(who_answers(status, (fast, deep) if settings.model == AUTO and fast and deep else None))
    tui.transcript.way = status.way_reason
    if not tui.outbox.pending:
        tui.screen.create_background_task(_suggest(tui, agent))


async def _suggest(tui: Tui, agent: Agent) -> None:
    if any(session.turns for session in await asyncio.to_thread(agent.sessions)):
        return
    ideas = await asyncio.to_thread(to_try, agent.status())
    if ideas and not tui.running and not tui.outbox.pending and not agent.status().turns:
        tui.transcript.add("try", try_rows(ideas, tui.screen.width))
        tui.screen.request_frame()


def who_answers(status: Status, pair: tuple[str, str] | None) -> str:
    """Describe the model and what it can do; `pair` are the fast and the deep one of `model = "auto"`."""
    if pair is not None:
        return f"{pair[0]} (fast) or {pair[1]} (deep) answers, depending on the task; every turn says which, and why"
    match status.way:
        case "tools":
            sees = ", and it sees images" if "vision" in status.abilities else ""
            return f"{status.model} answers: it reads and edits files and runs commands{sees}"
        case "edit":
            can = "it edits code that you name; it does not chat or run commands"
        case _:
            can = "it calls no tools, so it changes no files"
    return f"{status.model} answers: {can} (/model lists others)"


def to_try(status: Status) -> list[str]:
    """Prompts that fit what the model can do and what the folder contains; none if there is nothing to do."""
    workspace = Path(status.workspace)
    if status.way == "edit":
        name, where = _some_function(workspace)
        if not name:
            return []
        return [  # the rename is last: after it nothing has this name any more
            f"add a parameter debug=False to {name}{where}",
            f"where is {name}?",
            f"rename {name} to my_{name}{where}",
        ]
    file = _some_file(workspace)
    if not file:
        return ["write a to-do list for the command line in Python, with tests"] if status.way == "tools" else []
    if status.way != "tools":
        return [f"what does @{file} do?", f"what could be simpler in @{file}?"]
    review = "/review" if (workspace / ".git").exists() else f"what does @{file} do?"
    return ["how does this project fit together?", review, "find a bug, show it with a test, and fix it"]


def try_rows(ideas: list[str], width: int) -> list[Row]:
    """The prompts, one per row."""
    rows: list[Row] = []
    for number, idea in enumerate(ideas):
        rows += wrapped(idea, width, first=[("dim", "  try  " if number == 0 else "       ")], indent=7)
    return rows


def _some_file(workspace: Path) -> str:
    """The name of a file, preferably code of the project itself."""
    names = [_name(entry.path, workspace) for entry in islice(walk(workspace), _LISTED)]
    return min(names, key=_strangeness, default="")


def _strangeness(name: str) -> tuple[bool, bool, bool]:
    """How far a file is from the project's own code, as a sort key."""
    return not _CODE.search(name), bool(_TEST.search(name) or _AUXILIARY.search(name)), name.endswith("__init__.py")


def _some_function(workspace: Path) -> tuple[str, str]:
    """The name of a function outside the tests, preferably of the project's own code; and ` in FILE` if other functions
    may have the same name."""
    listed = [entry.path for entry in islice(walk(workspace), _LISTED + 1)]
    paths = [path for path in listed[:_LISTED] if path.endswith(".py")]
    paths.sort(key=lambda path: _strangeness(_name(path, workspace)))
    files = dict(_texts(paths[:_FILES], workspace))
    defined = Counter(name for text in files.values() for name in _DEFINED.findall(text))
    named = [(name, file) for file, text in files.items() if not _TEST.search(file) for name in _FUNCTION.findall(text)]
    # The project's own code comes first, then a name that only one function has.
    name, file = min(named, key=lambda one: (bool(_AUXILIARY.search(one[1])), defined[one[0]] != 1), default=("", ""))
    alone = defined[name] == 1 and len(listed) <= _LISTED and len(paths) <= _FILES
    return name, "" if alone else f" in {file}"


def _texts(paths: Sequence[str], workspace: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of those files that can be read."""
    for path in paths:
        with contextlib.suppress(OSError, FulgurError):
            yield _name(path, workspace), beneath.read(workspace, Path(path), _BYTES).decode(errors="replace")


def _name(path: str, workspace: Path) -> str:
    return beneath.shown(Path(path).relative_to(workspace).as_posix())
