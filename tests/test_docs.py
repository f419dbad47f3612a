"""What the pages name is there: files and functions of the trace, and every link between pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fulgur"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "apps").glob("*/README.md")])

# `engine/engine.py` (`Engine.submit`, then `Engine.step`): a file, and what to read in it.
_NAMED = re.compile(r"`([\w./]+\.(?:py|cpp|h|cu|cuh))`((?:\s+\([^()]*\))?)")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def named() -> list[tuple[str, str]]:
    """The files that docs/flow.md names, each with what it names of them (or nothing)."""
    text = (ROOT / "docs" / "flow.md").read_text(encoding="utf-8")
    found = []
    for path, names in _NAMED.findall(text):
        found += [(path, name) for name in re.findall(r"`([\w.:]+)`", names)] or [(path, "")]
    for row in re.findall(r"^\| `([\w./]+\.py)` \|.*\| (.*) \|$", text, re.MULTILINE):
        found += [(row[0], name) for name in re.findall(r"`(\w+)`", row[1])]
    return found


def defined(text: str, name: str) -> bool:
    """Whether a file defines a name: a function, a class, a method of a class, or a type."""
    owner, _, own = name.replace("::", ".").rpartition(".")
    if f"::{own}" in name:
        return f"{name}(" in text
    if owner:
        body = re.search(rf"^class {owner}\b[^\n]*\n(?:(?:[ \t][^\n]*)?\n)*", text, re.MULTILINE)
        return body is not None and re.search(rf"^    (?:async )?def {own}\b", body[0], re.MULTILINE) is not None
    return re.search(rf"^\s*(?:(?:async )?def|class) {own}\b|^{own}\b.* = ", text, re.MULTILINE) is not None


def test_the_trace_is_read() -> None:
    assert len(named()) > 80
    assert ("engine/engine.py", "Engine.step") in named() and ("kernels/cpu/runtime.cpp", "Runtime::body") in named()


@pytest.mark.parametrize(("path", "name"), sorted(set(named())))
def test_what_the_trace_names_is_there(path: str, name: str) -> None:
    file = ROOT / path if path.startswith("tests/") else SOURCE / path
    assert file.is_file()
    assert not name or defined(file.read_text(encoding="utf-8"), name), f"{path} defines no {name}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{link}: there is no such heading"
