"""SECURITY.md promises what the table in the code says, and the doctor reports it."""

import re
from pathlib import Path

from fulgur.sandbox import landlock, promises
from fulgur.ui.commands.doctor import sandbox

PAGE = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")


def test_the_page_says_the_same() -> None:
    rows = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 4 and re.match(r"(yes|no)\b", cells[1]):
            rows[cells[0].strip("| ")] = tuple(cells[1:])
    said = {
        promise: tuple("no" if note is None else f"yes, {note}" if note else "yes" for note in worlds)
        for promise, worlds in promises.PROMISES.items()
    }
    assert rows == said


def test_the_doctor_names_the_world_and_what_it_keeps() -> None:
    facts = dict(sandbox())
    here = promises.world()
    if here is None:
        assert "refused" in facts["sandbox keeps"]
        return
    assert f"by {here}" in facts["sandbox keeps"] and "no network" in facts["sandbox keeps"]
    kept, broken = promises.kept_here()
    assert len(kept) + len(broken) == len(promises.PROMISES)
    assert ("other processes are not seen" in broken) == (here != "bubblewrap")


def test_an_old_kernel_is_said(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(promises, "world", lambda: "Landlock with mounts")
    monkeypatch.setattr(landlock, "abi", lambda: 4)
    assert "no signal, trace, limit or priority for other processes" in promises.kept_here()[1]
