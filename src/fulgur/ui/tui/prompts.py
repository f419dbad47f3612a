"""Commands that are prompts: `/init`, `/review`, and those that a person or a trusted project keeps as files."""

from __future__ import annotations

import re

from fulgur.config.named import NamedText, filled, named_texts
from fulgur.config.settings import Settings
from fulgur.errors import UsageError

# The lines are long because the screen that shows a prompt folds it.
_INIT = """Write an AGENTS.md for this project: what a coding agent needs to know before it changes anything here.
Look first: the README, the build and test configuration, the layout of the source, the CI.
At most 60 lines: what the project is in two sentences; a map of the folders that matter; the exact commands to build, \
test and lint, each tried; the rules that the code follows and that are not obvious. No general advice.
If there is an AGENTS.md already, improve it instead of starting again."""

_REVIEW = """Review {what}. Do not change any file.
Read the diff ({how}), then the code around it, and look for: bugs, broken callers, missing error handling, lost data, \
security, tests that are missing or cannot fail. Run the tests that cover it if that is quick.
Report findings only, the most serious first, each with path:line, what goes wrong, and in which case. No praise, no \
restating of the diff. If there is nothing to find, say so in one line."""

_REVISION = re.compile(r"[\w./~^@{}-]+")


def init_prompt() -> str:
    return _INIT


def review_prompt(argument: str) -> str:
    """Review the working tree, a commit, or what this branch adds to another."""
    if not argument:
        what, how = "the uncommitted changes of this repository", "`git diff HEAD` and untracked files"
    elif match := re.fullmatch(r"(?:branch|against)\s+(\S+)", argument):
        base = _checked(match[1])
        what, how = f"what this branch adds to {base}", f"`git diff {base}...HEAD`"
    else:
        revision = _checked(argument)
        what, how = f"the commit {revision}", f"`git show {revision}`"
    return _REVIEW.format(what=what, how=how)


def _checked(revision: str) -> str:
    if revision.startswith("-") or not _REVISION.fullmatch(revision):
        raise UsageError(f"/review {revision}?", hint="/review, /review COMMIT, or /review branch NAME")
    return revision


def own_commands(settings: Settings) -> dict[str, NamedText]:
    """A command `/NAME` for each file in `commands`."""
    return {f"/{text.name}": text for text in named_texts(settings, "commands")}


def own_prompt(command: NamedText, arguments: str) -> str:
    return filled(command.text, arguments)
