"""Markdown files that add commands and roles: heads, arguments, and whose files count."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.config.named import filled, named_texts, parse
from fulgur.config.records import ProjectRecords
from fulgur.config.settings import load_settings
from fulgur.ui.tui.prompts import review_prompt


def test_a_head_is_read_and_the_rest_is_the_text() -> None:
    found = parse(Path("fix.md"), '---\nDescription: "mend it"\nmodel: fast\n---\n\nMend $1.\n')
    assert (found.name, found.head, found.text) == ("fix", {"description": "mend it", "model": "fast"}, "Mend $1.")
    assert parse(Path("a.md"), "no head\n---\nhere").head == {}


def test_arguments_are_put_in_or_come_last() -> None:
    assert filled("Mend $1 and $2 of $ARGUMENTS.", "a b") == "Mend a and b of a b."
    assert filled("Mend $3.", "a") == "Mend ."
    assert filled("Mend it.", "in app.py") == "Mend it.\n\nin app.py"


def test_a_project_adds_its_own_only_when_it_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    monkeypatch.setenv("FULGUR_HOME", str(home))
    for folder, text in ((home / "commands", "mine"), (project / ".fulgur" / "commands", "theirs")):
        folder.mkdir(parents=True)
        (folder / "both.md").write_text(text)
    (project / ".fulgur" / "commands" / "only.md").write_text("theirs")
    (project / ".git").mkdir()
    (project / ".fulgur" / "commands" / "secret.md").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("secret")
    assert [(t.name, t.text) for t in named_texts(load_settings(project), "commands")] == [("both", "mine")]
    ProjectRecords(home).set_trusted(project, True)
    found = {t.name: t.text for t in named_texts(load_settings(project), "commands")}
    assert found == {"both": "theirs", "only": "theirs"}, "and no link leads out of the project"


def test_what_is_reviewed_is_named_and_nothing_else_gets_into_the_prompt() -> None:
    assert "git diff HEAD" in review_prompt("")
    assert "git show HEAD~2" in review_prompt("HEAD~2")
    assert "git diff main...HEAD" in review_prompt("branch main")
    for wrong in ("--output=x", "a b", "x;rm"):
        with pytest.raises(Exception, match="/review"):
            review_prompt(wrong)
