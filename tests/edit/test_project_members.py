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
    assert left == [("other.py", 3), ("uses.py", 15), ("uses.py", 20)]


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
    with pytest.raises(RefactorError, match=r"Handler\.startElement may override the one of ContentHandler"):
        rename_member_everywhere(project, path, "Handler", "startElement", "begin", None)
