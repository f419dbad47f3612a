"""Instructions that ask for no edit of code are answered; those that only look like them are carried out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fulgur.edit.editor import NOTHING, Proposal, Refusal, locate, plan, propose
from fulgur.edit.locate import find_place
from fulgur.edit.plain.no_edit import NoEditMeant, bare
from fulgur.edit.region import locate_region, parse_target
from fulgur.edit.verbs import without_verb
from fulgur.errors import FulgurError

SHOP = """\
import os

RATE = 1


def load(path, size=1):
    text = open(path).read()
    for line in text.split(","):
        print("%s" % line)
    return text


def delete(name):
    os.remove(name)
"""
ALONE = "def load(path, file=None):\n    return open(path).read()\n"
FILES, NOTHING_NAMED = "does not delete or empty files", "does not say what"

# The place, the words, and what the answer says.
ANSWERED = [
    ("shop.py", "delete this file", FILES),
    ("shop.py", "please delete the file", FILES),
    ("shop.py", "delete shop.py", FILES),
    ("shop.py", "rm shop.py and its tests", FILES),
    ("shop.py", "remove the whole module", FILES),
    ("shop.py", "delete the contents of the file", FILES),
    ("shop.py", "get rid of this file, it is unused", FILES),
    ("shop.py", "delete pkg/other.py", "`rm pkg/other.py`"),
    ("shop.py:load", "delete shop.py", FILES),
    ("shop.py", "delete", NOTHING_NAMED),
    ("shop.py", "delete it", NOTHING_NAMED),
    ("shop.py", "remove everything", NOTHING_NAMED),
    ("shop.py", "drop all the code", NOTHING_NAMED),
    ("alone.py", "delete it", NOTHING_NAMED),
    ("shop.py", "rename the file to store.py", "does not rename or move files"),
    ("shop.py", "rename it to store.py", "does not rename or move files"),
    ("shop.py", "rename it to total", "does not rename or move files"),
    ("shop.py", "mv shop.py store.py", None),  # two paths: not one of ours
    ("shop.py", "move this module into pkg/", "does not rename or move files"),
    ("shop.py", "copy the file", "does not rename or move files"),
    ("shop.py", "create a new file", "does not create files"),
    ("shop.py", "add a module called store", "does not create files"),
    ("shop.py", "create store.py", "does not create files"),
    ("shop.py", "split this file into two modules", "does not split or merge files"),
    ("shop.py", "merge a.py and b.py", "does not split or merge files"),
    ("shop.py", "run it", "only changes code"),
    ("shop.py", "run the script with -v", "only changes code"),
    ("shop.py", "run the tests", "only changes code"),
    ("shop.py", "open shop.py", "only changes code"),
    ("shop.py:load", "explain this function", "only changes code"),
    ("shop.py:load", "commit", "only changes code"),
    ("shop.py", "format the file", "`ruff format shop.py`"),
    ("shop.py", "reformat it with black", None),  # what "it" is with more behind it is for the model
    ("shop.py", "format this file with black", "use a formatter"),
    ("shop.py", "reformat", "use a formatter"),
    ("shop.py:load", "undo", "--undo"),
    ("shop.py", "undo that", "--undo"),
    ("shop.py", "revert the last change", "--undo"),
    ("shop.py", "restore the previous version", "--undo"),
    ("shop.py", "roll back", "--undo"),
    ("shop.py", "fix it", NOTHING_NAMED),
    ("shop.py", "improve the code", NOTHING_NAMED),
    ("shop.py", "fix shop.py", NOTHING_NAMED),
    ("shop.py", "refactor this file", NOTHING_NAMED),
    ("alone.py", "make it private", None),
    ("notes.md", "delete this file", FILES),
    ("notes.md", "fix it", NOTHING_NAMED),
]
# The place, the words, and the call, "" for a model.
CARRIED_OUT = [
    ("shop.py", "delete the function load", "delete_symbol load"),
    ("shop.py", "delete load", "delete_symbol load"),
    ("shop.py", "delete delete", "delete_symbol delete"),
    ("shop.py", "delete the function delete", "delete_symbol delete"),
    ("shop.py:delete", "delete the function", "delete_symbol delete"),
    ("shop.py:load", "delete", "delete_symbol load"),
    ("shop.py:load", "delete it", "delete_symbol load"),
    ("shop.py:delete", "rename it to discard", "rename delete discard"),
    ("shop.py:load", "make it private", "rename load _load"),
    ("alone.py", "delete the function", "delete_symbol load"),
    ("alone.py", "rename the function to fetch", "rename load fetch"),
    ("alone.py", "remove the file argument", "remove_parameter load file"),
    ("alone.py", "delete the file", "remove_parameter load file"),
    ("shop.py", "RATE = 2", "set_value RATE 2"),
    ("shop.py", "undo = None", ""),
    ("shop.py:load", "move it to io.py", "move_symbol load io.py"),
    ("shop.py:load", "run the loop once", ""),
    ("shop.py:load", "open the file in binary mode", ""),
    ("shop.py", "open the file in binary mode", ""),
    ("shop.py:load", "split the string on commas", ""),
    ("shop.py:load", "format the message with an f-string", "use_fstring"),
    ("shop.py:load", "read the file as utf-8", ""),
    ("shop.py:load", "write the file with utf-8", ""),
    ("shop.py:load", "delete the file after reading it", ""),
    ("shop.py:load", "remove the file in a finally block", ""),
    ("shop.py", "add a file argument to load", ""),
    ("shop.py", "add a module docstring", ""),
    ("shop.py:load", "simplify it", ""),
    ("shop.py:load", "reset the state", ""),
    ("shop.py", "restore the state on error", ""),
    ("shop.py", "test whether the path exists", ""),
    ("shop.py", "close the file", ""),
    ("shop.py", "sort the imports", "sort_imports"),
    ("shop.py", "annotate everything", ""),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'shop'\n")
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "alone.py").write_text(ALONE)
    (tmp_path / "notes.md").write_text("# Notes\n")
    return tmp_path


class NoModel:
    def rewrite(self, item: dict[str, Any]) -> Any:
        raise AssertionError("no model is asked")


@pytest.mark.parametrize(("at", "say", "answer"), ANSWERED)
def test_what_asks_for_no_edit_is_answered(project: Path, at: str, say: str, answer: str | None) -> None:
    task = locate(parse_target(at, project), say)
    if answer is None:
        assert task.spelled_out() is None
        return
    refusal, asked = plan(task, NoModel())
    assert isinstance(refusal, Refusal) and refusal.check == NOTHING and asked is None
    assert answer in refusal.reason


@pytest.mark.parametrize(("at", "say", "call"), CARRIED_OUT)
def test_what_looks_like_it_is_carried_out(project: Path, at: str, say: str, call: str) -> None:
    found = locate(parse_target(at, project), say).spelled_out()
    assert (" ".join((found.name, *found.args)) if found else "") == call


def test_a_large_file_needs_no_part_for_it(project: Path) -> None:
    (project / "shop.py").write_text("\n".join(f"def f{n}():\n    pass\n" for n in range(200)))
    refusal, _ = plan(locate(parse_target("shop.py", project), "delete this file"), NoModel())
    assert isinstance(refusal, Refusal) and "`rm shop.py`" in refusal.reason
    with pytest.raises(FulgurError, match="which part"):
        locate(parse_target("shop.py", project), "shorten it")


def test_lines_that_are_named_and_a_line_of_a_function(project: Path) -> None:
    assert locate(parse_target("shop.py:13-14", project), "delete it").spelled_out() is not None
    widened = locate(parse_target("shop.py:13", project), "delete it").spelled_out()
    assert isinstance(widened, NoEditMeant) and NOTHING_NAMED in widened.why


@pytest.mark.parametrize(
    ("prompt", "file", "instruction"),
    [
        ("delete shop.py", "shop.py", "delete shop.py"),
        ("delete @shop.py", "shop.py", "delete shop.py"),
        ("please delete the file shop.py", "shop.py", "please delete the file shop.py"),
        ("@shop.py delete it", "shop.py", "delete it"),
        ("in shop.py rename load to read", "shop.py", "rename load to read"),
        ("@shop.py", "shop.py", "@shop.py"),
    ],
)
def test_the_file_that_a_verb_is_about_is_kept(
    project: Path, home: Path, prompt: str, file: str, instruction: str
) -> None:
    place = find_place(prompt, project, home)
    assert (place.target.path, place.instruction) == (project / file, instruction)


@pytest.mark.parametrize("prompt", ["undo", "fix it", "run the tests", "delete gone.py", "Delete the file."])
def test_nothing_is_looked_for_without_a_place(project: Path, home: Path, prompt: str) -> None:
    with pytest.raises(FulgurError, match=r"does not say what|undo|the editor"):
        find_place(prompt, project, home, ["shop.py"])


def test_a_verb_is_not_the_function_of_its_name(project: Path, home: Path) -> None:
    with pytest.raises(FulgurError, match="which file"):
        find_place("delete the cache", project, home)
    assert find_place("delete should return None", project, home).target.symbol == "delete"
    assert find_place("rename delete to remove", project, home).target.symbol == "delete"
    text = SHOP + "\n" * 60  # long enough that a part has to be found
    region = locate_region(text, parse_target("shop.py", project), "delete should return None")
    assert region.text.startswith("def delete")
    with pytest.raises(FulgurError, match="which part"):
        locate_region(text, parse_target("shop.py", project), "delete the cache")


@pytest.mark.parametrize(
    ("said", "rest"),
    [
        ("add a parameter", " a parameter"),
        ("please, delete the cache", " the cache"),
        ("add should return a copy", "add should return a copy"),
        ("add: return a copy", "add: return a copy"),
        ("load returns None", "load returns None"),
    ],
)
def test_the_verb_at_the_beginning(said: str, rest: str) -> None:
    assert without_verb(said) == rest


@pytest.mark.parametrize(
    ("said", "nothing"),
    [("delete", True), ("fix the", True), ("clean up this file", True), ("delete load", False), ("", False)],
)
def test_a_verb_alone_names_nothing(said: str, nothing: bool) -> None:
    assert bare(said) is nothing


def test_a_function_that_is_deleted_is_the_named_one(project: Path) -> None:
    task = locate(parse_target("shop.py:delete", project), "delete it")
    call = task.spelled_out()
    assert call is not None
    proposal = propose(task, call)
    assert isinstance(proposal, Proposal)
    assert "def load" in proposal.text and "def delete" not in proposal.text
