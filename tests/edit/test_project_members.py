"""A member is renamed where the class of its object can be read off, in every file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.edit.project.members import rename_member_everywhere
from fulgur.edit.refactor.errors import RefactorError

FILES = {
    "pkg/__init__.py": "from .base import Shop\n",
    "pkg/base.py": "class Shop:\n    limit = 3\n\n    def total(self):\n        return self.limit\n",
    "pkg/small.py": (
        "from pkg import Shop\n\n\nclass Small(Shop):\n    def total(self):\n        return super().total() + 1\n"
    ),
    "pkg/tiny.py": (
        "import pkg.small\n\n\nclass Tiny(pkg.small.Small):\n    def half(self):\n        return self.total() / 2\n"
    ),
    "pkg/uses.py": (
        "from pkg import Shop\nfrom pkg.small import Small\n\n\ndef known(shop: Shop):\n    return shop.total()\n\n\n"
        "def made():\n    shop = Small()\n    return shop.total() + Shop().total() + Shop.total(shop)\n\n\n"
        "def unknown(thing):\n    return thing.total()\n\n\n"
        "def mixed(shop: Shop, other):\n    shop = other\n    return shop.total()\n"
    ),
    "pkg/other.py": "class Basket:\n    def total(self):\n        return self.total\n",
}  # fmt: skip


def test_a_method_is_followed_through_subclasses_and_known_objects(project: Path) -> None:
    result = rename_member_everywhere(project, project / "pkg/base.py", "Shop", "total", "sum_up", None)
    files = {path.name: after for path, (_, after) in result.files.items()}
    assert sorted(files) == ["base.py", "small.py", "tiny.py", "uses.py"]
    assert "def sum_up(self):\n        return super().sum_up() + 1" in files["small.py"]
    assert "self.sum_up() / 2" in files["tiny.py"]
    assert "return shop.sum_up()\n\n\ndef made" in files["uses.py"]
    assert "shop.sum_up() + Shop().sum_up() + Shop.sum_up(shop)" in files["uses.py"]
    left = [(place.path.name, place.line) for place in result.unsure]
    assert left == [("uses.py", 15), ("uses.py", 20)]


def test_an_attribute_of_the_class(project: Path) -> None:
    result = rename_member_everywhere(project, project / "pkg/base.py", None, "limit", "most", None)
    assert [path.name for path in result.files] == ["base.py"]
    assert (
        "    most = 3\n\n    def total(self):\n        return self.most\n" in result.files[project / "pkg/base.py"][1]
    )


def test_a_name_that_a_subclass_has_is_refused(project: Path) -> None:
    with pytest.raises(RefactorError, match="half already exists in Tiny"):
        rename_member_everywhere(project, project / "pkg/base.py", "Shop", "total", "half", None)


def test_an_attribute_is_renamed_in_the_slots_too(project: Path) -> None:
    """`__slots__` lists it as a string: without it every object would fail."""
    text = "class Till:\n    __slots__ = 'open', 'vb'\n\n    def __init__(self, vb):\n        self.vb = vb\n"
    path = project / "pkg/till.py"
    path.write_text(text)
    result = rename_member_everywhere(project, path, "Till", "vb", "verbose", None)
    assert result.files[path][1] == text.replace("'vb'", "'verbose'").replace("self.vb", "self.verbose")


SAX = (
    "from xml.sax.handler import ContentHandler\nfrom xml.sax.saxutils import XMLGenerator\n\n\n"
    "class Reader:\n    def endElement(self, name):\n        return self.endElement\n\n"
    "    def only_ours(self):\n        pass\n\n\n"
    "class Handler(ContentHandler):\n    def startElement(self, name, attrs):\n        pass\n\n\n"
    "def write(out, name):\n    XMLGenerator(out).endElement(name)\n    out.endElement(name)\n    out.only_ours()\n"
)


def test_a_member_that_imported_classes_have_is_not_renamed_on_unknown_objects(project: Path) -> None:
    path = project / "pkg/sax.py"
    path.write_text(SAX)
    result = rename_member_everywhere(project, path, "Reader", "endElement", "finish", None)
    changed = result.files[path][1]
    assert "def finish(self, name):\n        return self.finish\n" in changed
    assert "XMLGenerator(out).endElement(name)\n    out.endElement(name)\n" in changed
    assert [place.line for place in result.unsure] == [19, 20]
    result = rename_member_everywhere(project, path, "Reader", "only_ours", "mine", None)
    assert "out.mine()\n" in result.files[path][1]


def test_a_member_that_overrides_one_from_outside_is_not_renamed(project: Path) -> None:
    path = project / "pkg/sax.py"
    path.write_text(SAX)
    with pytest.raises(RefactorError, match=r"Handler\.startElement may override ContentHandler\.startElement"):
        rename_member_everywhere(project, path, "Handler", "startElement", "begin", None)


def renamed(project: Path, text: str, old: str, new: str, **others: str) -> tuple[str, list[tuple[str, int]]]:
    """The text of `pkg/a.py` with a member of its class C renamed, and what was listed; `others` are more files."""
    (project / "pkg/a.py").write_text(text)
    for name, content in others.items():
        (project / f"pkg/{name}.py").write_text(content)
    result = rename_member_everywhere(project, project / "pkg/a.py", "C", old, new, None)
    left = [(place.path.name, place.line) for place in result.unsure]
    return "".join(after for _, after in result.files.values()), left


@pytest.mark.parametrize(
    ("head", "use"),
    [
        ("from dataclasses import dataclass\n@dataclass(frozen=True)\nclass C:\n    tries: int = 1\n", "C(tries=2)"),
        ("import attr\n@attr.s\nclass C:\n    tries = attr.ib()\n", "C(tries=2)"),
        ("from typing import NamedTuple\nclass C(NamedTuple):\n    tries: int\n", "C(tries=1)._replace(tries=2)"),
        ("from dataclasses import dataclass, replace\n@dataclass\nclass C:\n    tries: int\n", "replace(x, tries=2)"),
        ("from functools import partial\nfrom pydantic import BaseModel\nclass C(BaseModel):\n    tries: int\n",
         "partial(C, tries=2)"),
    ],
    ids=["dataclass", "attrs", "tuple", "replace", "partial"],
)  # fmt: skip
def test_a_field_is_renamed_where_it_is_passed_by_name(project: Path, head: str, use: str) -> None:
    text, _ = renamed(project, f"{head}\n\ndef f(x):\n    return {use}\n", "tries", "attempts")
    assert text == f"{head}\n\ndef f(x):\n    return {use}\n".replace("tries", "attempts")


def test_other_calls_with_the_same_keyword_are_left_alone(project: Path) -> None:
    head = "from dataclasses import dataclass\n@dataclass\nclass C:\n    tries: int = 1\n"
    own = "    def __init__(self, tries):\n        self.tries = tries\n"
    other = "def g(tries): ...\n\n\ng(tries=2)\n"
    text, left = renamed(project, f"{head}\n\n{other}C(**{{'tries': 1}})\n", "tries", "attempts")
    assert text == f"{head}\n\n{other}C(**{{'tries': 1}})\n".replace("    tries:", "    attempts:")
    assert left == [("a.py", 11), ("a.py", 11)]  # the stars, and the text in them
    text, _ = renamed(project, f"class C:\n{own}\nC(tries=1)\n", "tries", "attempts")
    assert "C(tries=1)" in text and "self.attempts = tries" in text  # the parameter is another name


def test_a_property_with_its_setter(project: Path) -> None:
    code = (
        "class C:\n    @property\n    def label(self):\n        return 1\n\n"
        "    @label.setter\n    def label(self, value):\n        pass\n\n    alias = label\n"
    )
    text, _ = renamed(project, code, "label", "title")
    assert text == code.replace("label", "title")


def test_a_pattern_names_the_attribute(project: Path) -> None:
    code = (
        "class C:\n    __match_args__ = ('x',)\n\n    def __init__(self, x):\n        self.x = x\n\n\n"
        "def f(p):\n    match p:\n        case C(x=0):\n            return 1\n"
    )
    text, _ = renamed(project, code, "x", "left")
    assert "('left',)" in text and "case C(left=0):" in text and "self.left = x" in text


def test_a_mock_by_its_dotted_name(project: Path) -> None:
    text, left = renamed(
        project, "class C:\n    def go(self):\n        pass\n", "go", "run",
        tests="from unittest.mock import patch\n\nwith patch('pkg.a.C.go'), patch('other.C.go'):\n    pass\n",
    )  # fmt: skip
    assert "patch('pkg.a.C.run'), patch('other.C.go')" in text
    assert ("tests.py", 3) in left  # the other one


def test_texts_that_name_a_member_are_listed(project: Path) -> None:
    (project / "guide.md").write_text("Call `shop.reckon()` first.\n\nTo reckon is human.\n")
    code = "class C:\n    def reckon(self):\n        '''See `reckon`.'''\n\n\ngetattr(C(), 'reckon')\n"
    _, left = renamed(project, code, "reckon", "total_up")
    assert sorted(left) == [("a.py", 3), ("a.py", 6), ("guide.md", 1)]


def test_keys_of_a_typed_dict_are_refused(project: Path) -> None:
    with pytest.raises(RefactorError, match="C is a TypedDict"):
        renamed(project, "from typing import TypedDict\n\n\nclass C(TypedDict):\n    name: str\n", "name", "title")
