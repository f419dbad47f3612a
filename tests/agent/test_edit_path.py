"""The edit path with a model that only rewrites regions."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from agent_world import agent_on, say, serving

from fulgur.agent.route.question import is_question
from fulgur.backends.base import Capabilities
from fulgur.edit.locate import find_place
from fulgur.errors import FulgurError
from fulgur.model.random import random_model, tiny_config, write_hf_folder
from fulgur.protocol.agent import (
    FileChanged,
    GuardReported,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    TurnDone,
    TurnFailed,
    TurnStarted,
    TurnSteered,
    TurnStopped,
    UsageReported,
)
from fulgur.server import app
from fulgur.server.config import Model, ServerConfig
from fulgur.text.edit_format import CALL
from fulgur.workspace.folders import TOKENIZER

EDITS = Capabilities(context=2048, chat=False, tools=False, edit=True)
OLD = "def load(path):\n    return open(path).read()\n"
SOURCE = f"import os\n\n\n{OLD}\n\ndef save(path, text):\n    open(path, 'w').write(text)\n"
NEW = "def load(path: str) -> str:\n    return open(path).read()\n"


@pytest.fixture
def project(workspace: Path) -> Path:
    (workspace / "pkg").mkdir()
    (workspace / "pkg/store.py").write_text(SOURCE)
    (workspace / "pkg/other.py").write_text("def save_all(items):\n    return items\n")
    return workspace


async def edits(project: Path, replies: list[dict[str, Any]], prompt: str, *overrides: str) -> list[Any]:
    async with serving(replies, capabilities=EDITS) as server, agent_on(server, project, *overrides) as watch:
        await watch.turn(prompt)
        return watch.seen


async def test_a_folder_without_files_says_which_model_writes_new_ones(workspace: Path) -> None:
    failed = (await edits(workspace, [say(NEW)], "write a snake game"))[-1]
    assert isinstance(failed, TurnFailed) and failed.message == "there is no file to edit in this folder yet"
    assert "/model" in failed.hint


async def test_a_region_is_rewritten(project: Path) -> None:
    events = await edits(project, [say(NEW)], "add type hints to load")
    started = next(e for e in events if isinstance(e, TurnStarted))
    assert (started.way, started.reason) == ("edit", "m makes the edits that you name and calls no tools")
    tool = next(e for e in events if isinstance(e, ToolStarted))
    assert tool.title == "rewrite pkg/store.py:4-5 (load is defined in pkg/store.py:4)"
    assert "".join(e.text for e in events if isinstance(e, ToolOutput)) == NEW
    assert (project / "pkg/store.py").read_text() == SOURCE.replace(OLD, NEW)
    assert next(e for e in events if isinstance(e, FileChanged)).added == 1
    assert [e.ok for e in events if isinstance(e, ToolFinished)] == [True]
    assert next(e for e in events if isinstance(e, UsageReported)).model == "m"
    assert isinstance(events[-1], TurnDone) and events[-1].text == "Edited pkg/store.py:4."


async def test_line_endings_stay(project: Path) -> None:
    (project / "pkg/store.py").write_bytes(SOURCE.replace("\n", "\r\n").encode())
    await edits(project, [say(NEW)], "@pkg/store.py:load add type hints")
    assert (project / "pkg/store.py").read_bytes().count(b"\r\n") == SOURCE.count("\n")
    assert b"path: str" in (project / "pkg/store.py").read_bytes()


async def test_no_edit_and_refactoring_call(project: Path) -> None:
    events = await edits(project, [say("<|noedit|>")], "add type hints to load")
    assert isinstance(events[-1], TurnFailed) and events[-1].message.startswith("no edit: ")
    assert "`help` says what m can do" in events[-1].hint
    assert (project / "pkg/store.py").read_text() == SOURCE
    await edits(project, [say("<|call|>rename load read_all")], "rename load to read_all")
    assert "def read_all(path):" in (project / "pkg/store.py").read_text()


async def test_a_question_gets_places_and_no_edit(project: Path) -> None:
    events = await edits(project, [say(NEW)], "what does load do?")
    assert isinstance(events[-1], TurnDone)
    assert "pkg/store.py:4" in events[-1].text and "only edits" in events[-1].text and "/model" in events[-1].text
    assert (project / "pkg/store.py").read_text() == SOURCE


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("What does load do?", True),
        ("where is the cache", True),
        ("explain load", True),
        ("hello, what can you do?", True),
        ("help", True),
        ("help load to find its file", False),
        ("can you rename load to read?", False),
        ("add a docstring to load", False),
        ("use isinstance instead of type", False),
        ("whatever_name should be called name", False),
    ],
)
def test_a_question_is_told_from_a_request(text: str, asks: bool) -> None:
    assert is_question(text) is asks


async def test_a_greeting_is_told_what_it_can_do(project: Path) -> None:
    events = await edits(project, [say(NEW)], "hello, what can you do?")
    assert isinstance(events[-1], TurnDone)
    assert events[-1].text.startswith("m only edits: name a place") and "rename names" in events[-1].text


async def test_the_line_that_was_edited_is_named(project: Path) -> None:
    (project / "pkg/store.py").write_text("import os\n\n\nx = 1\ny = 2\n")
    events = await edits(project, [say("import os\n\n\nx = 1\ny = 3\n")], "@pkg/store.py shorten it")
    assert isinstance(events[-1], TurnDone) and events[-1].text == "Edited pkg/store.py:5."


async def test_an_answer_that_does_not_parse_is_tried_once_more(project: Path) -> None:
    events = await edits(project, [say("def load(path: str -> str:\n", times=1), say(NEW)], "add type hints to load")
    assert next(e for e in events if isinstance(e, GuardReported)).fed_back
    assert isinstance(events[-1], TurnDone)
    events = await edits(project, [say("def load(:\n")], "add a docstring to load")
    assert isinstance(events[-1], TurnFailed) and "does not parse" in events[-1].message
    assert "path: str" in (project / "pkg/store.py").read_text()


async def test_the_markers_of_a_call_are_not_shown(project: Path) -> None:
    events = await edits(project, [say(f"{CALL}rename_parameter load path file")], "shorten load")
    assert all(e.output == "" for e in events if isinstance(e, ToolFinished))
    assert isinstance(events[-1], TurnFailed) and not [e for e in events if isinstance(e, GuardReported)]


WRONG = "def load(path):\n    return os.read_all(path)\n"


async def test_names_that_do_not_exist_get_one_other_attempt(project: Path) -> None:
    events = await edits(project, [say(WRONG, times=1), say(NEW)], "shorten load")
    reports = [e for e in events if isinstance(e, GuardReported) and e.problems]
    assert [(r.check, r.fed_back) for r in reports] == [("names exist", True)]
    assert "os has no attribute read_all (nearest: read)" in reports[0].problems[0]
    assert len([e for e in events if isinstance(e, ToolStarted)]) == 2
    assert isinstance(events[-1], TurnDone) and "path: str" in (project / "pkg/store.py").read_text()


async def test_names_that_still_do_not_exist_are_refused(project: Path) -> None:
    events = await edits(project, [say(WRONG)], "shorten load")
    assert isinstance(events[-1], TurnFailed)
    assert "the rewrite was not applied: line 5: os has no attribute read_all" in events[-1].message
    assert not any(e.ok for e in events if isinstance(e, ToolFinished))  # no ✓ before what is refused
    assert (project / "pkg/store.py").read_text() == SOURCE


async def test_an_english_word_does_not_ask_for_a_name(project: Path) -> None:
    guessed = "def load(path):\n    if not path:\n        raise error\n    return open(path).read()\n"
    events = await edits(project, [say(guessed)], "let load raise an error without a path")
    assert isinstance(events[-1], TurnFailed) and "Undefined name `error`" in events[-1].message


async def test_names_that_were_asked_for_are_shown_and_applied(project: Path) -> None:
    events = await edits(project, [say(WRONG)], "make load call os.read_all")
    reports = [e for e in events if isinstance(e, GuardReported) and e.problems]
    assert [(r.check, r.fed_back) for r in reports] == [("names exist", False)]
    assert isinstance(events[-1], TurnDone) and "read_all" in (project / "pkg/store.py").read_text()


async def test_steer_and_stop(project: Path) -> None:
    slow = [{"steps": [{"tokens": 4000}], "times": 1}, say(NEW, times=1), {"steps": [{"tokens": 4000}]}]
    async with serving(slow, capabilities=EDITS, rate=300) as server, agent_on(server, project) as watch:
        watch.agent.submit("rewrite load")
        await watch.until(ToolOutput)
        watch.agent.submit("add type hints to load")
        await watch.until(TurnDone)
        assert watch.of(TurnSteered)[0].text == "add type hints to load"
        assert "path: str" in (project / "pkg/store.py").read_text()
        kinds = [entry.kind for entry in watch.agent.transcript()]
        assert kinds == ["user", "assistant", "steer", "diff", "assistant"]
        await watch.agent.wait()
        before = (project / "pkg/store.py").read_text()
        since = len(watch.seen)
        watch.agent.submit("rewrite save")
        await watch.until(ToolOutput, since)
        watch.agent.stop()
        await watch.until(TurnStopped)
        assert (project / "pkg/store.py").read_text() == before
        await watch.agent.wait()
        await watch.agent.undo()
        assert (project / "pkg/store.py").read_text() == SOURCE


async def test_a_steer_that_names_no_place_means_the_same_place(project: Path) -> None:
    slow = [{"steps": [{"tokens": 4000}]}]
    async with serving(slow, capabilities=EDITS, rate=300) as server, agent_on(server, project) as watch:
        watch.agent.submit("rewrite load")
        await watch.until(ToolOutput)
        watch.agent.submit("no, call it fetch")
        await watch.until(TurnDone)
        assert "def fetch(path)" in (project / "pkg/store.py").read_text()


async def test_a_file_that_spells_a_control_token_is_edited_like_any_other(project: Path) -> None:
    source = SOURCE.replace("import os", "X = '<|end|>'")
    (project / "pkg/store.py").write_text(source)
    events = await edits(project, [say(NEW)], "add type hints to load")
    assert isinstance(events[-1], TurnDone)
    assert (project / "pkg/store.py").read_text() == source.replace(OLD, NEW)


@pytest.mark.parametrize(
    ("prompt", "file", "symbol"),
    [
        ("@pkg/store.py:save make it safe", "pkg/store.py", "save"),
        ("tidy pkg/other.py", "pkg/other.py", None),
        ("in pkg/store.py:load use with", "pkg/store.py", "load"),
        ("add a docstring to `save_all`", "pkg/other.py", "save_all"),
        ("make save() atomic", "pkg/store.py", "save"),
    ],
)
def test_places(project: Path, home: Path, prompt: str, file: str, symbol: str | None) -> None:
    place = find_place(prompt, project, home)
    assert (place.target.path, place.target.symbol) == (project / file, symbol)


@pytest.mark.parametrize(
    ("prompt", "instruction"),
    [
        ("in pkg/store.py rename load to read", "rename load to read"),
        ("pkg/store.py: rename load to read", "rename load to read"),
        ("rename load to read in pkg/store.py.", "rename load to read"),
        ("rename load in pkg/store.py to read", "rename load in pkg/store.py to read"),
        ("pkg/store.py", "pkg/store.py"),
    ],
)
def test_a_path_that_was_understood_is_no_word_for_the_model(
    project: Path, home: Path, prompt: str, instruction: str
) -> None:
    assert find_place(prompt, project, home).instruction == instruction


def test_a_verb_is_not_the_place(project: Path, home: Path) -> None:
    """An instruction begins with a verb; a function of that name, or several, is not what it is about."""
    (project / "one.py").write_text("def rename():\n    pass\n\n\ndef cheapest():\n    pass\n")
    assert find_place("rename cheapest to lowest", project, home).target.symbol == "cheapest"
    (project / "two.py").write_text("def rename():\n    pass\n")
    assert find_place("rename cheapest to lowest", project, home).target.symbol == "cheapest"
    with pytest.raises(FulgurError, match="rename is defined in 2 places"):
        find_place("rename should return None", project, home)


def test_places_that_are_not_clear(project: Path, home: Path) -> None:
    with pytest.raises(FulgurError, match="which file"):
        find_place("make it nicer", project, home)
    (project / "third.py").write_text("def load():\n    pass\n")
    with pytest.raises(FulgurError, match=r"load is defined in 2 places: third\.py:1, pkg/store\.py:4"):
        find_place("tidy load", project, home)
    with pytest.raises(FulgurError, match="there is no file nope"):
        find_place("@nope.py tidy", project, home)
    assert find_place("make it nicer", project, home, ["pkg/other.py"]).target.path == project / "pkg/other.py"


async def test_a_real_engine_answers_and_nonsense_is_not_applied(project: Path, tmp_path: Path) -> None:
    """The embedded model's family with random weights, through the real server and engine."""
    config = tiny_config("fulgur", vocab_size=8192, max_context=1024)
    write_hf_folder(tmp_path / "model", config, random_model(config, 1))
    shutil.copy(TOKENIZER, tmp_path / "model")

    served = ServerConfig()
    served.server.port, served.server.store = 0, ":memory:"
    served.models["random"] = Model(backend="local", path=str(tmp_path / "model"), runtime="reference")
    running = await app.start(served)
    async with agent_on(running, project) as watch:
        assert {"edit", "fim"} <= set(watch.agent.status().abilities)
        end = await watch.turn("add type hints to load")
        assert isinstance(end, TurnFailed) and "the rewrite was" in end.message
        usage = watch.of(UsageReported)[0]
        assert usage.model == "random" and usage.draft_tokens >= usage.accepted_tokens
        assert usage.draft_tokens > 0  # the region is the draft
        # Without accepted drafts the model wrote everything itself.
        assert (usage.raw_tokens_per_second == usage.tokens_per_second) == (usage.accepted_tokens == 0)
        assert (project / "pkg/store.py").read_text() == SOURCE
    await running.close()
