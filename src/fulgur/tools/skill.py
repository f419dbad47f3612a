"""The tool by which a model reads a skill."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from fulgur.config.skills import Skill
from fulgur.errors import FulgurError
from fulgur.tools.base import Arguments, Report, Tool, ToolResult
from fulgur.workspace.beneath import shown


class SkillArguments(Arguments, frozen=True):
    """Arguments of `skill`."""

    name: Annotated[str, Meta(description="the name of the skill")]
    file: Annotated[str, Meta(description="another file of it, such as `reference.md`; default: SKILL.md")] = ""


def skill_tool(skills: Sequence[Skill]) -> Tool[SkillArguments]:
    """Build the tool `skill` for these skills."""
    by_name = {skill.name: skill for skill in skills}

    def read(args: SkillArguments) -> str:
        skill = by_name.get(args.name)
        if skill is None:
            raise FulgurError(f"there is no skill {args.name!r}", hint=f"Skills: {', '.join(by_name)}")
        text = skill.read(args.file)
        others = skill.files() if not args.file else []
        return f"{text}\n\n[In {shown(str(skill.folder))}: {', '.join(others)}]" if others else text

    async def run(args: SkillArguments, report: Report) -> ToolResult:
        return ToolResult(True, await asyncio.to_thread(read, args))

    return Tool(
        "skill",
        "Read how something is done here, by the name of a skill in your instructions; or another file of it.",
        SkillArguments,
        run,
        lambda a: f"skill {a.name}" + (f"/{a.file}" if a.file else ""),
        kind="read",
    )
