"""The editor: what an answer comes to, what is refused, and what follows from a change. No model is asked."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from fulgur.edit.complete import cursor
from fulgur.edit.document import Document
from fulgur.edit.editor import Proposal, Refusal, locate, plan, propose, write
from fulgur.edit.model import Answer, model_folder
from fulgur.edit.next import candidates, last_change, like, previous_text, renamed_like, sound
from fulgur.edit.region import parse_target
from fulgur.errors import FulgurError
from fulgur.text.code_prompt import around
from fulgur.text.edit_format import RecentEdit
from fulgur.workspace.files import Change
from fulgur.workspace.journal import EditJournal

SOURCE = b"def load(path):\r\n    data = read(path)\r\n    return data\r\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_bytes(SOURCE)
    return path


def result(target: str, said: str, instruction: str = "") -> Proposal | Refusal:
    return propose(locate(parse_target(target), instruction), said)


def after(target: str, said: str, instruction: str = "") -> str:
    """The new text; a FulgurError with the reason when it is refused."""
    found = result(target, said, instruction)
    if isinstance(found, Refusal):
        raise FulgurError(found.reason)
    return found.text


def test_a_rewrite_is_written_and_undone_byte_for_byte(file: Path, home: Path) -> None:
    journal = EditJournal(home)
    proposal = result("app.py:load", "def load(path):\n    rows = read(path)\n    return rows\n<|end|>")
    assert isinstance(proposal, Proposal) and file.read_bytes() == SOURCE
    write(proposal, journal)
    assert file.read_bytes() == SOURCE.replace(b"data", b"rows")
    journal.undo()
    assert file.read_bytes() == SOURCE
    with pytest.raises(FulgurError, match="no edit to undo"):
        journal.undo()


def test_answers_that_cannot_be_used(file: Path) -> None:
    text = SOURCE.decode().replace("\r\n", "\n")
    for said, check, reason in [
        ("<|noedit|><|end|>", "nothing to do", "found no edit"),
        (text + "<|end|>", "nothing to do", "found no edit"),
        ("def load(:\n<|end|>", "parses", "does not parse"),
        ("def load(path):\n    return read(path, path=1, path=2)\n<|end|>", "parses", "keyword argument repeated"),
        ("<|call|>rename nothing other<|end|>", "as asked", "there is no nothing"),
        ("<|call|>explode_all<|end|>", "as asked", "does not exist"),
    ]:
        refusal = result("app.py", said)
        assert isinstance(refusal, Refusal) and refusal.check == check and reason in refusal.reason

    class Cut:
        def rewrite(self, item: dict[str, object]) -> Answer:
            return Answer("def load(path):\n", False, 10, 4, 0, 0.1)

    refusal, _ = plan(locate(parse_target("app.py"), "x"), Cut())
    assert isinstance(refusal, Refusal) and refusal.reason == "the model's answer was cut off"


def test_a_rename_is_exact_or_refused(file: Path) -> None:
    text = Document.open(file).text
    exact = text.replace("data", "rows")
    stray = exact.replace("    return", "    rows += 1\n    return")
    for said, noted in ((exact, False), (stray, True)):
        proposal = result("app.py:load", said, "rename data to rows")
        assert isinstance(proposal, Proposal) and proposal.text == exact
        assert any("the exact refactoring replaced it" in note for note in proposal.notes) is noted
    for names in ("nothing to rows", "data to path"):
        with pytest.raises(FulgurError):
            after("app.py:load", stray, f"rename {names}")


def test_what_was_not_asked_is_refused(file: Path) -> None:
    with pytest.raises(FulgurError, match="more than the docstring"):
        after("app.py:load", 'def load(path):\n    """Read."""\n    return read(path)\n', "add a docstring")
    with pytest.raises(FulgurError, match="would rename data to rosw"):
        after("app.py:load", "<|call|>rename data rosw<|end|>", "rename data to rows")
    with pytest.raises(FulgurError, match="`raed`"):
        after("app.py:load", "def load(path):\n    return raed(path)\n", "return directly")


def test_a_call_changes_the_whole_file(file: Path) -> None:
    text = Document.open(file).text
    assert after("app.py:load", "<|call|>rename load fetch<|end|>") == text.replace("load", "fetch")
    assert after("app.py:load", "<|call|>add_import import os<|end|>") == "import os\n\n" + text


def test_broken_json_is_refused_and_unknown_languages_are_not_judged(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}\n')
    with pytest.raises(FulgurError, match="does not parse"):
        after("a.json", '{"a": \n')
    (tmp_path / "a.txt").write_text("one\n")
    assert after("a.txt", "two\n") == "two\n"


def test_a_refactoring_of_another_language_is_refused_plainly(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("a = 1\n")
    with pytest.raises(FulgurError, match=r"edits only Python, not \.toml files"):
        after("a.toml", "<|call|>rename a b<|end|>", "rename a to b")


@pytest.mark.parametrize("said", ["<|call|>rename load b<|end|>", "<|noedit|><|end|>", "<|call|>add_import os<|end|>"])
def test_a_rename_of_what_is_not_there_says_so(file: Path, said: str) -> None:
    with pytest.raises(FulgurError, match=r"^there is no lode in app\.py \(nearest: load\)$"):
        after("app.py:load", said, "rename lode to fetch")


@pytest.mark.parametrize(
    ("call", "instruction", "why"),
    [
        ("remove_comments", "remove the comment", "more than one comment"),
        ("remove_comments", "remove the comments", None),
        ("remove_prints", "drop that print statement", "more than one print"),
        ("remove_prints", "remove the prints", None),
    ],
)
def test_one_of_several_is_not_all_of_them(file: Path, call: str, instruction: str, why: str | None) -> None:
    file.write_text("def f():\n    print(1)  # one\n    print(2)  # two\n    return 3\n")
    found = result("app.py:f", f"<|call|>{call}<|end|>", instruction)
    assert (why or "") in found.reason if isinstance(found, Refusal) else why is None


def test_another_language_is_named_whatever_the_model_guessed(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("name=x\n")
    task = locate(parse_target("a.sh"), "rename name to title")
    for said in ("<|call|>rename_parameter name title<|end|>", "<|noedit|><|end|>"):
        found = propose(task, said, probability=0.1)
        assert isinstance(found, Refusal) and found.reason == "the embedded model edits only Python, not .sh files"


def test_words_that_the_model_is_not_sure_of_are_asked_for(file: Path) -> None:
    said = "<|call|>add_docstring Load a price from a file.<|end|>"
    found = propose(locate(parse_target("app.py:load"), "add a docstring"), said, probability=0.1)
    assert isinstance(found, Refusal) and "give it, as in “add the docstring" in found.reason
    assert "Load a price from a file." in found.reason


def test_a_file_that_does_not_parse_is_the_reason(file: Path) -> None:
    file.write_text("def f(a:\n    return a\n\n\ndef g(b):\n    return b\n")
    with pytest.raises(FulgurError, match=r"cannot parse the file: line 1: '\(' was never closed"):
        after("app.py:g", "<|call|>rename b c<|end|>", "rename b to c")


def test_a_name_that_the_file_does_not_have_is_said(file: Path) -> None:
    file.write_text("def parse_keys(text):\n    return text\n\n\n" + "x = 1\n" * 100)
    with pytest.raises(FulgurError, match=r"There is no parse_kayz in it \(nearest: parse_keys\)"):
        locate(parse_target("app.py"), "rename parse_kayz to load_key")
    file.write_text("def f():\n" + f"    x = {'1' * 100}\n" * 30)
    with pytest.raises(FulgurError, match=r"31 lines, 3,\d+ characters \(at most 60 and 2,400\)"):
        locate(parse_target("app.py:f"), "make x nicer")
    assert locate(parse_target("app.py:f"), "rename x to y").spelled_out() is not None  # needs no model


def test_a_file_that_was_broken_before_may_be_mended_by_parts(file: Path) -> None:
    file.write_text("def f(:\n    x = 1\n\n\ndef g(:\n    y = 2\n")
    assert after("app.py:5-6", "def g():\n    y = 2\n").endswith("def g():\n    y = 2\n")


@pytest.mark.parametrize(
    ("said", "instruction"),
    [
        ("@is_local\ndef fetch(url):\n    return url\n", "decorate fetch with is_local"),
        ("@cached\ndef fetch(url):\n    return url\n", "remember the results"),
        ("def fetch(url, limit=self):\n    return url\n", "add a parameter limit"),
        ("def fetch(url):\n    print(reply)\n    reply = url\n    return reply\n", "print the reply"),
    ],
)
def test_an_edit_that_raises_a_name_error_is_refused(tmp_path: Path, said: str, instruction: str) -> None:
    (tmp_path / "net.py").write_text(
        "def fetch(url):\n    return url\n\n\ndef is_local(self):\n    return self\n\n\ndef cached():\n    ...\n"
    )
    refusal = result("net.py:fetch", said, instruction)
    assert isinstance(refusal, Refusal) and refusal.check == "names exist" and "is used" in refusal.reason


def test_a_name_that_was_asked_for_is_noted(file: Path) -> None:
    proposal = result("app.py:load", "@my_cache\n" + Document.open(file).text, "decorate it with my_cache")
    assert isinstance(proposal, Proposal) and "Undefined name `my_cache`" in proposal.notes[0]
    with pytest.raises(FulgurError, match="Undefined name `wraps_it`"):
        after("app.py:load", "@wraps_it\n" + Document.open(file).text)


def test_an_answer_that_leaves_a_name_without_value_is_refused(file: Path) -> None:
    with pytest.raises(FulgurError, match="`data` is used where it is not defined"):
        after("app.py", "def load(path):\n    return data\n")


def test_next_finds_places_like_the_last_change(file: Path, home: Path) -> None:
    text = "def a(x):\n    return fetch(x)\n\n\ndef b(y):\n    return fetch(y)\n\n\ndef c(z):\n    return z + 1\n"
    file.write_text(text)
    journal = EditJournal(home)
    journal.write([Change(file, text.encode(), text.replace("fetch(x)", "fetch(x, retries=3)").encode())])
    document = Document.open(file)
    recent, lines = last_change(document, previous_text(document, journal))
    assert [edit.after for edit in recent] == ["    return fetch(x, retries=3)\n"] and lines == {2}
    assert [region.text for region in candidates(document, recent, lines)] == ["def b(y):\n    return fetch(y)\n"]


def test_next_accepts_only_the_words_of_the_last_change() -> None:
    recent = [RecentEdit("    a = room(3, 4, 'x')\n", "    a = room(3, 4, name='x')\n")]
    assert like("b = room(1, 'y')\n", "b = room(1, name='y')\n", recent)
    assert not like("b = room(1, 'y')\n", "b = room(1, 'y', name='x')\n", recent)
    assert not like("b = room(1, 'y')\n", "b = room(name='y')\n", recent)
    two = "a = room(1, 'y')\nb = other()\n", "a = room(1, name='y')\nb = other\n"
    assert not like(*two, recent)


def test_next_after_a_rename_is_exact_where_a_name_lost_its_value(file: Path) -> None:
    text = "def area(breadth):\n    return width * len('width')\n\n\ndef room(width):\n    return area(width)\n"
    file.write_text(text)
    document, recent = Document.open(file), [RecentEdit("def area(width):\n", "def area(breadth):\n")]
    region = "    return width * len('width')\n"
    assert renamed_like(region, recent) == "    return breadth * len('width')\n"
    assert sound(document, text, text.replace("return width", "return breadth"), exact=True)
    assert not sound(document, text, text.replace("area(width)", "area(breadth)"), exact=False)
    assert not sound(document, text, text.replace("room(width)", "room(w)"), exact=False)
    longer = [RecentEdit("def area(width):\n", "def area(breadth, height):\n")]
    assert renamed_like(region, longer) == region


def test_cursor_and_context() -> None:
    text = "ab\ncd\n"
    assert cursor(text, 2, 3, "f") == 5 and around(text[:4], text[4:]) == ("ab\nc", "d\n")
    long = "line\n" * 5000
    prefix, suffix = around(long[:12_500], long[12_500:])
    assert prefix.startswith("line\n") and suffix.endswith("line\n") and 3000 <= len(prefix) <= 4200


def test_what_a_completion_sees_begins_at_the_same_line_while_somebody_types() -> None:
    """Editors send a window that slides with every key; a prompt that begins otherwise is computed anew."""
    text = "".join(f"def f{n}(a):\n    b = a * {n}\n    return b\n\n\n" for n in range(400))
    typed = "def total(prices):\n    found = []\n" + "    for price in prices:\n        found.append(price)\n" * 3
    seen = [around((text + typed[:at])[-12_000:], "")[0] for at in range(len(typed))]
    beginnings = [one for one, two in itertools.pairwise(seen) if not two.startswith(one)]
    assert len(beginnings) <= 1 and all(one.startswith("def f") for one in seen)


def test_models_are_found_by_folder_and_refused_by_name(tmp_path: Path) -> None:
    assert model_folder(str(tmp_path)) == tmp_path
    assert model_folder("fulgur-30m") == model_folder("30M")  # the name that the server and the screen use
    with pytest.raises(FulgurError, match="there is no model zebra") as refused:
        model_folder("zebra")
    assert "fulgur-60m, fulgur-30m" in str(refused.value.hint)


def test_a_name_that_stands_for_two_things_in_a_long_file_is_asked_back(file: Path) -> None:
    file.write_text("class A:\n    def run(self): ...\n\n\ndef run(): ...\n\n\ndef only(): ...\n" + "x = 1\n" * 100)
    with pytest.raises(FulgurError, match="which part"):
        locate(parse_target("app.py"), "rename run to start")
    assert locate(parse_target("app.py"), "rename only to alone").spelled_out() is not None
