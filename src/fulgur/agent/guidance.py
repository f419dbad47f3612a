"""What the settings imply before anything is said: rules, instructions and warnings."""

from __future__ import annotations

from dataclasses import dataclass

from fulgur.agent.loop.prompt import RuleFile, find_rules, instructions, rules_left_out
from fulgur.agent.route.models import ModelLink
from fulgur.config.effects import without_effect
from fulgur.config.settings import Settings
from fulgur.config.skills import Skill, find_skills
from fulgur.sandbox.choose import shortcomings
from fulgur.sandbox.policy import Policy


@dataclass(frozen=True)
class Guidance:
    """`limits` is the warning about what the sandbox lacks, if there is one."""

    rules: list[RuleFile]
    skills: list[Skill]
    instructions: str
    warnings: list[str]
    limits: str | None

    @classmethod
    def of(cls, settings: Settings, policy: Policy, link: ModelLink) -> Guidance:
        """Read the rules, skills and warnings."""
        rules = find_rules(settings)
        skills, wrong = find_skills(settings)
        warnings = [*settings.warnings, *without_effect(settings, link.info.name, link.info.abilities)]
        warnings += [*rules_left_out(settings), *wrong]
        limits = shortcomings(policy)
        text = instructions(settings, policy, rules, skills if "tools" in link.info.abilities else [])
        return cls(rules, skills, text, [*warnings, *([limits] if limits else [])], limits)

    def outdated(self, settings: Settings) -> bool:
        """Whether the rules or the skills have changed since they were read."""
        return find_rules(settings) != self.rules or find_skills(settings)[0] != self.skills
