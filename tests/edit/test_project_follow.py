"""An edit of one file is carried into the files that import from it, or refused."""

from __future__ import annotations

from pathlib import Path

from fulgur.edit.editor import Proposal, Refusal, locate, propose, write
from fulgur.edit.region import parse_target
from fulgur.workspace.journal import EditJournal

FILES = {
    "pyproject.toml": "",
    "src/pkg/__init__.py": "",
    "src/pkg/text.py": (
        "def make_str(value):\n    return str(value)\n\n\n"
        "class Shop:\n    def total(self):\n        return 0\n"
    ),
    "src/pkg/core.py": "from .text import Shop, make_str\n\nprint(make_str(1), Shop().total())\n",
}  # fmt: skip


def proposed(project: Path, part: str, said: str, instruction: str) -> Proposal | Refusal:
    return propose(locate(parse_target(str(project / f"src/pkg/text.py:{part}")), instruction), said)


def test_a_rename_changes_the_importers_and_comes_back_as_one(project: Path, home: Path) -> None:
    result = proposed(project, "make_str", "<|call|>rename make_str to_text", "rename make_str to to_text")
    assert isinstance(result, Proposal)
    assert [document.name for document, _ in result.others] == ["src/pkg/core.py"]
    journal = EditJournal(home)
    assert len(write(result, journal)) == 2
    assert (project / "src/pkg/core.py").read_text().startswith("from .text import Shop, to_text\n\nprint(to_text(1)")
    assert len(journal.undo()) == 2
    for name, text in FILES.items():
        assert (project / name).read_text() == text


def test_a_rename_that_the_model_wrote_out_is_followed_too(project: Path) -> None:
    result = proposed(project, "make_str", "def to_text(value):\n    return str(value)\n", "rename make_str to to_text")
    assert isinstance(result, Proposal) and len(result.others) == 1


def test_what_others_import_is_not_taken_away(project: Path) -> None:
    result = proposed(project, "make_str", "def write(value):\n    return str(value)\n", "call this function `write`")
    assert isinstance(result, Refusal) and result.reason == "src/pkg/core.py:1 uses make_str from this file"


def test_uses_of_a_member_elsewhere_are_named(project: Path) -> None:
    result = proposed(project, "Shop", "<|call|>rename Shop.total sum_up", "rename Shop.total to sum_up")
    assert isinstance(result, Proposal)
    assert [text for _, text in result.others] == [FILES["src/pkg/core.py"].replace("total", "sum_up")]
    (project / "src/pkg/more.py").write_text("def f(shop):\n    return shop.total()\n")
    result = proposed(project, "Shop", "<|call|>rename Shop.total sum_up", "rename Shop.total to sum_up")
    assert isinstance(result, Proposal) and not result.notes  # nothing else has a member of this name
    assert "def f(shop):\n    return shop.sum_up()\n" in [text for _, text in result.others]
    (project / "src/pkg/bill.py").write_text("class Bill:\n    def total(self):\n        return 1\n")
    result = proposed(project, "Shop", "<|call|>rename Shop.total sum_up", "rename Shop.total to sum_up")
    assert isinstance(result, Proposal)
    assert "Possible other uses, left unchanged: src/pkg/more.py:2." in result.notes


def test_a_parameter_is_added_in_every_file(project: Path) -> None:
    said = "<|call|>add_parameter make_str encoding 'utf-8'"
    result = proposed(project, "make_str", said, "add a parameter encoding and pass 'utf-8' in all calls")
    assert isinstance(result, Proposal)
    assert "make_str(1, encoding='utf-8')" in result.others[0][1]


def test_a_local_is_not_taken_for_a_member_of_its_name(project: Path) -> None:
    text = (
        project / "src/pkg/text.py"
    ).read_text() + "\n\ndef add(values):\n    total = sum(values)\n    return total\n"
    (project / "src/pkg/text.py").write_text(text)
    result = proposed(project, "add", "<|call|>rename total amount", "rename total to amount")
    assert isinstance(result, Proposal) and not result.others
    assert "def total(self)" in result.text and "amount = sum(values)" in result.text


FIELD = "class Cut:\n    def __init__(self, sep, *, strip=True):\n        self.sep = sep\n        self.strip = strip\n"


def test_an_attribute_and_its_parameter_are_one_name_where_the_class_is_meant(project: Path) -> None:
    (project / "src/pkg/text.py").write_text(FIELD)
    (project / "src/pkg/core.py").write_text("from .text import Cut\n\nprint(Cut(sep=1).sep)\n")
    result = proposed(project, "Cut", "<|call|>rename sep mark", "rename sep to mark")
    assert isinstance(result, Proposal)
    assert result.text == FIELD.replace("sep", "mark")
    assert [text for _, text in result.others] == ["from .text import Cut\n\nprint(Cut(mark=1).mark)\n"]
    result = proposed(project, "Cut.__init__", "<|call|>rename sep mark", "rename sep to mark")
    assert isinstance(result, Proposal) and "self.sep = mark" in result.text  # of the function alone
    task = locate(parse_target(str(project / "src/pkg/text.py:Cut")), "rename self.sep to self.mark")
    call = task.spelled_out()
    assert call is not None
    result = propose(task, call)
    assert isinstance(result, Proposal) and "def __init__(self, sep" in result.text and "self.mark = sep" in result.text


def test_a_member_that_another_class_of_the_file_has_is_followed_too(project: Path) -> None:
    """The file keeps a name `total`, of another class."""
    (project / "src/pkg/text.py").write_text(
        "class Shop:\n    def total(self):\n        return 0\n\n\nclass Bill:\n    def total(self):\n        return 1\n"
    )
    (project / "src/pkg/core.py").write_text("from .text import Shop\n\nprint(Shop().total())\n")
    result = proposed(project, "Shop", "<|call|>rename Shop.total sum_up", "rename Shop.total to sum_up")
    assert isinstance(result, Proposal)
    assert [text for _, text in result.others] == ["from .text import Shop\n\nprint(Shop().sum_up())\n"]
