"""`fulgur edit`, `complete` and `next` with a real (random) model: what they say, and that nothing changes wrongly."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fulgur.edit.embedded import Embedded, Reply, model_folder
from fulgur.errors import FulgurError
from fulgur.model.random import random_model, tiny_config, write_hf_folder
from fulgur.text.edit_format import RecentEdit
from fulgur.ui.cli import main
from fulgur.ui.commands.complete import around, cursor
from fulgur.ui.commands.edit import Document, show
from fulgur.ui.commands.next import candidates, last_change, like, renamed_like, sound
from fulgur.workspace.folders import TOKENIZER
from fulgur.workspace.journal import EditJournal

SOURCE = b"def load(path):\r\n    data = read(path)\r\n    return data\r\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    config = tiny_config("fulgur", vocab_size=8192, max_context=1024)
    write_hf_folder(folder, config, random_model(config, 1))
    shutil.copy(TOKENIZER, folder)
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FULGUR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_bytes(SOURCE)
    return path


def reply(text: str, finished: bool = True) -> Reply:
    return Reply(text, finished, 10, 4, 50, 0.01, 0.005, 0.001)


def after(document: Document, text: str, finished: bool = True, instruction: str = "") -> str:
    return document.after(document.locate("x"), reply(text, finished), instruction)


def test_a_random_model_changes_nothing(file: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["edit", "-m", str(model), "app.py:load", "rename data to rows", "--write"])
    assert code == 1 and file.read_bytes() == SOURCE
    assert "nothing was changed" in capsys.readouterr().err


def test_complete_prints_text_and_speeds(file: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "-m", str(model), "app.py:2:12", "--max-tokens", "8"]) == 0
    shown = capsys.readouterr()
    assert "(raw " in shown.err and "tokens in" in shown.err


def test_wrong_use_is_said_plainly(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edit", "app.py"]) == 2
    assert main(["complete", "app.py:2"]) == 2
    assert main(["edit", "nowhere.py:f", "x"]) == 1
    assert main(["edit", "app.py:nothing", "x"]) == 1
    assert main(["complete", "app.py:2:99"]) == 1
    assert main(["edit", "-m", "no-such-model", "app.py", "x"]) == 1
    assert "there is no column 99" in capsys.readouterr().err


def test_a_rewrite_is_written_and_undone_byte_for_byte(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = Document.open(Path(), "app.py:load")
    changed = after(document, "def load(path):\n    rows = read(path)\n    return rows\n<|end|>")
    show(document, changed, reply(""), write=True)
    assert file.read_bytes() == SOURCE.replace(b"data", b"rows")
    assert "-    data = read(path)" in capsys.readouterr().out
    assert main(["edit", "--undo"]) == 0
    assert file.read_bytes() == SOURCE
    assert main(["edit", "--undo"]) == 1


def test_without_write_only_the_diff_is_shown(file: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = Document.open(Path(), "app.py")
    show(document, after(document, "def load(path):\n    return read(path)\n"), reply(""), write=False)
    assert "+    return read(path)" in capsys.readouterr().out
    assert file.read_bytes() == SOURCE and not home.exists()


def test_answers_that_cannot_be_used(file: Path) -> None:
    document = Document.open(Path(), "app.py")
    for text, finished, said in [
        ("<|noedit|><|end|>", True, "beyond the embedded model"),
        (document.text + "<|end|>", True, "no edit"),
        ("def load(:\n<|end|>", True, "does not parse"),
        ("def load(path):\n", False, "cut off"),
        ("<|call|>rename nothing other<|end|>", True, "there is no nothing"),
        ("<|call|>explode<|end|>", True, "there is no refactoring explode"),
    ]:
        with pytest.raises(FulgurError, match=said):
            after(document, text, finished)


def test_a_rename_is_exact_or_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = Document.open(Path(), "app.py:load")
    exact = document.text.replace("data", "rows")
    stray = exact.replace("    return", "    rows += 1\n    return")
    assert after(document, exact, instruction="rename data to rows") == exact
    assert "the refactoring did it" not in capsys.readouterr().err
    assert after(document, stray, instruction="rename data to rows") == exact
    assert "the refactoring did it" in capsys.readouterr().err
    for names in ("nothing to rows", "data to path"):
        with pytest.raises(FulgurError):
            after(document, stray, instruction=f"rename {names}")


def test_what_was_not_asked_is_refused(file: Path) -> None:
    document = Document.open(Path(), "app.py:load")
    with pytest.raises(FulgurError, match="more than the docstring"):
        after(document, 'def load(path):\n    """Read."""\n    return read(path)\n', instruction="add a docstring")
    with pytest.raises(FulgurError, match="would rename data to rosw"):
        after(document, "<|call|>rename data rosw<|end|>", instruction="rename data to rows")
    with pytest.raises(FulgurError, match="`raed`"):
        after(document, "def load(path):\n    return raed(path)\n", instruction="return directly")


def test_the_shipped_model_renames(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edit", "app.py:load", "rename data to rows", "--write"]) == 0
    assert file.read_bytes() == SOURCE.replace(b"data", b"rows")


def test_a_call_changes_the_whole_file(file: Path) -> None:
    document = Document.open(Path(), "app.py:load")
    assert after(document, "<|call|>rename load fetch<|end|>") == document.text.replace("load", "fetch")
    assert after(document, "<|call|>add_import import os<|end|>") == "import os\n\n" + document.text


def test_broken_json_is_refused_and_unknown_languages_are_not_judged(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}\n')
    with pytest.raises(FulgurError, match="does not parse"):
        after(Document.open(Path(), "a.json"), '{"a": \n')
    (tmp_path / "a.txt").write_text("one\n")
    assert after(Document.open(Path(), "a.txt"), "two\n") == "two\n"


def test_next_finds_places_like_the_last_change(file: Path) -> None:
    text = "def a(x):\n    return fetch(x)\n\n\ndef b(y):\n    return fetch(y)\n\n\ndef c(z):\n    return z + 1\n"
    file.write_text(text)
    EditJournal(Path("home").absolute() / "edits").write(
        file, text.encode(), text.replace("fetch(x)", "fetch(x, retries=3)").encode()
    )
    document = Document.open(Path(), "app.py")
    recent, lines = last_change(document)
    assert [edit.after for edit in recent] == ["    return fetch(x, retries=3)\n"] and lines == {2}
    assert [region.text for region in candidates(document, recent, lines)] == ["def b(y):\n    return fetch(y)\n"]


def test_next_accepts_only_the_words_of_the_last_change() -> None:
    recent = [RecentEdit("    a = room(3, 4, 'x')\n", "    a = room(3, 4, name='x')\n")]
    assert like("b = room(1, 'y')\n", "b = room(1, name='y')\n", recent)
    assert not like("b = room(1, 'y')\n", "b = room(1, 'y', name='x')\n", recent)
    assert not like("b = room(1, 'y')\n", "b = room(name='y')\n", recent)
    assert like("a = dict()\n", "a = {}\n", [RecentEdit("b = list()\n", "b = []\n")])


def test_next_after_a_rename_is_exact_where_a_name_lost_its_value(file: Path) -> None:
    text = "def area(breadth):\n    return width * len('width')\n\n\ndef room(width):\n    return area(width)\n"
    file.write_text(text)
    document, recent = Document.open(Path(), "app.py"), [RecentEdit("def area(width):\n", "def area(breadth):\n")]
    region = "    return width * len('width')\n"
    assert renamed_like(region, recent) == "    return breadth * len('width')\n"
    assert sound(document, text, text.replace("return width", "return breadth"), exact=True)
    assert not sound(document, text, text.replace("area(width)", "area(breadth)"), exact=False)
    assert not sound(document, text, text.replace("room(width)", "room(w)"), exact=False)
    longer = [RecentEdit("def area(width):\n", "def area(breadth, height):\n")]
    assert renamed_like(region, longer) == region


def test_an_answer_that_leaves_a_name_without_value_is_refused(file: Path) -> None:
    document = Document.open(Path(), "app.py")
    with pytest.raises(FulgurError, match="`data` where it has no value"):
        after(document, "def load(path):\n    return data\n")


def test_next_without_a_change_says_so(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["next", "app.py"]) == 1
    assert "no earlier version" in capsys.readouterr().err


def test_cursor_and_context() -> None:
    text = "ab\ncd\n"
    assert cursor(text, 2, 3, "f") == 5 and around(text, 4) == ("ab\nc", "d\n")
    long = "line\n" * 5000
    prefix, suffix = around(long, 12_500)
    assert prefix.startswith("line\n") and suffix.endswith("line\n") and len(prefix) < 4000


def test_models_are_found_by_folder_and_refused_by_name(model: Path) -> None:
    assert model_folder(str(model)) == model
    with pytest.raises(FulgurError, match="there is no model zebra"):
        model_folder("zebra")


def test_several_prompts_at_once_answer_as_one_by_one(model: Path) -> None:
    embedded = Embedded.open(str(model))
    asks = [embedded.completion("a.py", f"x{i} = ", "\n", 12) for i in range(4)]
    together = [answer.text for answer in embedded.ask(asks)]
    assert together == [embedded.ask([ask])[0].text for ask in asks]
    assert together == [answer.text for answer in embedded.ask(asks, speculate=False)]


def test_a_region_larger_than_the_context_is_refused(model: Path) -> None:
    embedded = Embedded.open(str(model))
    with pytest.raises(FulgurError, match="too large"):
        embedded.edit("a.py", "", "value = 1\n" * 300, "", "x")
    ask = embedded.edit("a.py", "above\n" * 2000, "value = 1\n", "below\n" * 2000, "x")
    assert embedded.ask([ask])[0].prompt_tokens < embedded.context


def test_a_sign_before_the_cursor_is_given_back_to_the_model() -> None:
    embedded = Embedded.open("60M")
    ask = embedded.completion("a.py", "import os\nhome = os.path.", "\n", 12, one_line=True)
    assert ask.begins == "." and ask.plain is not None and "import os\nhome = os.path" in ask.pieces
    [reply] = embedded.ask([ask])
    assert reply.text and "\n" not in reply.text and not reply.text.startswith(".")
    assert embedded.completion("a.py", "x = value\n    ", "", 12, one_line=True).plain is None
    assert embedded.completion("a.py", "x = val", "", 12, one_line=True).plain is None
    assert embedded.completion("a.py", "x = f(", "", 12).plain is None
    # An answer that does not go on with the sign is asked for again, with the sign in the prompt.
    other = replace(ask, begins="\0")
    assert embedded.ask([other])[0].text == embedded.ask([ask.plain])[0].text
