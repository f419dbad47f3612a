"""Skills: whose are offered, how the model reads them, and that none leads out of its folder."""

from __future__ import annotations

from pathlib import Path

from agent_world import agent_on, call, say, serving

from fulgur.config.settings import load_settings
from fulgur.config.skills import find_skills
from fulgur.protocol.agent import Warned


def skill(folder: Path, name: str, description: str, text: str = "Do it.") -> Path:
    place = folder / name
    place.mkdir(parents=True)
    (place / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\n{text}\n")
    return place


def names(workspace: Path) -> dict[str, str]:
    return {found.name: found.description for found in find_skills(load_settings(workspace))[0]}


def trust(workspace: Path) -> None:
    settings = load_settings(workspace)
    settings.records.set_trusted(settings.project, True)


def test_a_projects_skills_count_when_it_is_trusted(workspace: Path, home: Path) -> None:
    skill(home / "skills", "release", "mine")
    skill(workspace / ".claude" / "skills", "release", "the project's")
    skill(workspace / ".agents" / "skills", "deploy", ">-\n  to the\n  server\nmetadata:\n  - x\nallowed-tools: Read")
    assert names(workspace) == {"release": "mine"}
    trust(workspace)
    assert names(workspace) == {"deploy": "to the server", "release": "the project's"}


def test_what_is_wrong_with_a_skill_is_said(workspace: Path, tmp_path: Path) -> None:
    skills = workspace / ".fulgur" / "skills"
    skill(skills, "mute", "")
    outside = skill(tmp_path, "outside", "secrets")
    (skills / "linked").symlink_to(outside)
    (skills / "file").mkdir()
    (skills / "file" / "SKILL.md").symlink_to(outside / "SKILL.md")
    trust(workspace)
    found, wrong = find_skills(load_settings(workspace))
    assert found == [] and len(wrong) == 3 and sum("points outside the project" in text for text in wrong) == 2


async def test_the_model_reads_one(workspace: Path, home: Path) -> None:
    place = skill(home / "skills", "release", "how a release is made", "Tag it. See notes.md.")
    (place / "notes.md").write_text("Use v1.2.3.\n")
    (home / "token").write_text("secret\n")
    replies = [
        call("skill", {"name": "release"}, times=1),
        call("skill", {"name": "release", "file": "notes.md"}, times=1),
        call("skill", {"name": "release", "file": "../../token"}, times=1),
        call("skill", {"name": "other"}, times=1),
        {**say("ok"), "times": 1},
    ]
    async with serving([*replies, say("again")]) as server, agent_on(server, workspace) as watch:
        await watch.turn("make a release")
        assert "- release: how a release is made" in watch.agent.guidance.instructions
        body, notes, stolen, other = watch.outputs
        assert body.startswith("Tag it. See notes.md.") and "notes.md]" in body and notes == "Use v1.2.3.\n"
        assert "has no file ../../token" in stolen and "secret" not in stolen
        assert "Skills: release" in other
        skill(home / "skills", "second", "another")
        await watch.turn("go on")
        assert "- second: another" in watch.agent.guidance.instructions
        assert any("skills changed" in warned.message for warned in watch.of(Warned))
