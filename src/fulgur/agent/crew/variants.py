"""Several solutions of one task from one shared prefix: each is checked in its own copy, they are ranked, one is
taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from fulgur.agent.crew.crew import Crew
from fulgur.agent.crew.member import Member
from fulgur.agent.crew.roles import Role
from fulgur.edit.checks import TESTS
from fulgur.errors import FulgurError, UsageError
from fulgur.protocol.agent import AgentEvent, MemberFinished, VariantInfo
from fulgur.workspace.copies import Merged
from fulgur.workspace.files import FileDiff

MOST = 9  # a single digit selects one
_TEMPERATURE = 0.8  # of all but the first, which is what the model would have written anyway
_HEAD_START = 30.0  # seconds to wait at most for the first one to prefill the shared prefix


@dataclass
class Variant:
    """One solution."""

    number: int
    member: Member
    diffs: list[FileDiff] = field(default_factory=list)
    same_as: int = 0

    @property
    def passes(self) -> bool:
        """Whether it finished, changed something and passed every check that ran."""
        outcome = self.member.outcome
        return outcome.how == "done" and bool(self.diffs) and not any(outcome.problems.values())

    @property
    def proven(self) -> bool:
        """Whether it passes and nothing was left unchecked: the tests that cover it ran."""
        outcome = self.member.outcome
        return self.passes and TESTS in outcome.problems and not any(outcome.unchecked.values())

    @property
    def _size(self) -> int:
        return sum(diff.added + diff.removed for diff in self.diffs)

    def rank(self) -> tuple[object, ...]:
        """Sort key, best first: it passes, is no duplicate, finished with changes; then fewest problems, lines and
        tokens."""
        outcome = self.member.outcome
        problems = sum(len(found) for found in outcome.problems.values())
        ended = outcome.how != "done" or not self.diffs
        return (not self.passes, bool(self.same_as), ended, problems, self._size, outcome.output_tokens, self.number)

    def reasons(self) -> tuple[str, ...]:
        """Why it ranks where it does."""
        outcome = self.member.outcome
        found = [f"fails “{check}”: {'; '.join(problems)}" for check, problems in outcome.problems.items() if problems]
        unchecked = list(filter(None, outcome.unchecked.values()))
        passed = [
            check for check, problems in outcome.problems.items() if not problems and not outcome.unchecked[check]
        ]
        told = [f"ended early ({outcome.how}): {outcome.text}"] if outcome.how != "done" else []
        told += found + ([", ".join(passed)] if passed else []) + unchecked
        if not outcome.problems and outcome.how == "done" and self.diffs:
            told.append("nothing could be checked")
        if self.same_as:
            told.append(f"the same as {self.same_as}")
        added, removed = sum(d.added for d in self.diffs), sum(d.removed for d in self.diffs)
        files = f"{len(self.diffs)} file{'s' * (len(self.diffs) != 1)}"
        nothing = f"changes nothing{f': {outcome.text.splitlines()[0]}' if outcome.text else ''}"
        told.append(f"+{added} -{removed} in {files}" if self.diffs else nothing)
        return tuple(told)

    def info(self) -> VariantInfo:
        """Describe it for the screens."""
        outcome = self.member.outcome
        return VariantInfo(
            number=self.number,
            passes=self.passes,
            proven=self.proven,
            reasons=self.reasons(),
            diff="".join(diff.diff for diff in self.diffs),
            text=outcome.text,
            models=tuple(outcome.models),
            seconds=outcome.seconds,
            output_tokens=outcome.output_tokens,
            session_id=self.member.session_id,
        )


def check_count(count: int) -> None:
    """UsageError for fewer than two variants, or more than one would want to choose from."""
    if not 2 <= count <= MOST:
        raise UsageError(f"cannot make {count} variants: choose 2 to {MOST}")


class Variants:
    """The solutions of one task. `close` removes the copies."""

    def __init__(self, crew: Crew, task: str, emit: Callable[[AgentEvent], None]) -> None:
        self.task = task
        self.ranked: list[Variant] = []
        self._crew = crew
        self._emit = emit

    async def make(self, count: int, fork: str | None) -> list[Variant]:
        """Let `count` members solve the task, continuing from the session `fork`; return the variants, best first."""
        members = []
        for number in range(1, count + 1):
            other = {"temperature": _TEMPERATURE, "seed": number} if number > 1 else {}
            members.append(self._crew.member(Role(f"variant-{number}"), more=other, fork=fork))
        self.ranked = [Variant(number, member) for number, member in enumerate(members, 1)]
        try:
            await self._solve(members)
        finally:
            for member in members:
                self._crew.leave(member)
        for variant in self.ranked:
            copy = variant.member.copy
            variant.diffs = await asyncio.to_thread(copy.diffs) if copy is not None else []
            equal = (v.number for v in self.ranked if v.number < variant.number and v.diffs == variant.diffs)
            variant.same_as = next(equal, 0) if variant.diffs else 0
        self.ranked.sort(key=Variant.rank)
        return self.ranked

    async def _solve(self, members: list[Member]) -> None:
        """Start the first member alone; once it writes, the others find the shared prefix in the cache."""
        async with asyncio.TaskGroup() as group:
            first = group.create_task(members[0].run(self.task))
            begun = group.create_task(members[0].begun.wait())
            await asyncio.wait({first, begun}, timeout=_HEAD_START, return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
            for member in members[1:]:
                group.create_task(member.run(self.task))

    async def take(self, number: int) -> tuple[MemberFinished, list[FileDiff]]:
        """Apply one variant's changes to the workspace."""
        variant = next((variant for variant in self.ranked if variant.number == number), None)
        if variant is None:
            raise FulgurError(f"there is no variant {number}", hint=f"Choose 1 to {len(self.ranked)}.")
        if not variant.diffs:
            raise FulgurError(f"variant {number} changes nothing")
        merged: Merged = await self._crew.merge(variant.member)
        if merged.conflicts:
            where = ", ".join(merged.conflicts)
            raise FulgurError(f"variant {number} was not taken: {where} changed meanwhile", hint="Make them again.")
        return self._crew.finished(variant.member, merged), merged.diffs

    def close(self) -> None:
        """Remove the copies; no variant can be taken afterwards."""
        for variant in self.ranked:
            variant.member.close()
        self.ranked = []
