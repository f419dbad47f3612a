"""The subagents of a session: they run in parallel, can be steered one by one, and their changes are merged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fulgur.agent.crew.links import Links
from fulgur.agent.crew.member import Member
from fulgur.agent.crew.roles import Role
from fulgur.agent.route.models import ModelLink
from fulgur.config.settings import Settings
from fulgur.errors import FulgurError
from fulgur.protocol.agent import AgentEvent, MemberFinished, MemberTold
from fulgur.workspace.copies import Merged
from fulgur.workspace.files import Change, Files

More = Callable[[], list[Change]]
Review = Callable[[str, list[Change]], Awaitable[tuple[list[Change], str] | None]]
"""Asks the person about changes with this title: what of them is accepted, and in words what is left out; None: no."""


class Crew:
    """`files` writes into the workspace. `link` is a connection to share; without it the crew opens its own. `copies`
    is the folder for copies of the workspace (None: the temporary folder). `review` is called before a member's changes
    are merged."""

    def __init__(
        self,
        settings: Settings,
        files: Files,
        emit: Callable[[AgentEvent], None],
        link: ModelLink | None = None,
        copies: Path | None = None,
        review: Review | None = None,
    ) -> None:
        self.settings = settings
        self._files = files
        self._emit = emit
        self._links = Links(link)
        self._members: dict[str, Member] = {}
        self._copies = copies
        self._review = review
        self._merging = asyncio.Lock()

    @property
    def running(self) -> list[str]:
        """The names of the running members."""
        return list(self._members)

    def member(self, role: Role, *, more: dict[str, Any] | None = None, fork: str | None = None) -> Member:
        """Create a member; members of one role are named `reviewer`, `reviewer-2`, …."""
        name, number = role.name, 1
        while name in self._members:
            number += 1
            name = f"{role.name}-{number}"
        member = Member(name, role, self.settings, self._links, self._emit, more=more, fork=fork, copies=self._copies)
        self._members[name] = member
        return member

    async def run(self, role: Role, task: str, more: More = list) -> tuple[MemberFinished, Merged]:
        """Run a task on a new member and merge its changes if it finished. `more` returns changes to commit in the same
        step."""
        member = self.member(role)
        try:
            outcome = await member.run(task)
            merged, left_out = Merged(), ""
            if outcome.how == "done":
                merged, left_out = await self._reviewed(member, more)
            finished = self.finished(member, merged, left_out)
        finally:
            self.leave(member)
            await asyncio.to_thread(member.close)
        self._emit(finished)
        return finished, merged

    def finished(self, member: Member, merged: Merged, left_out: str = "") -> MemberFinished:
        """Build the event that records a member's end in the transcript."""
        outcome = member.outcome
        patch, diff = self._keep(member) if merged.conflicts or left_out else ("", "")
        return MemberFinished(
            member=member.name,
            role=member.role.name,
            model=member.model,
            models=tuple(outcome.models),
            how=outcome.how,
            text=outcome.text,
            session_id=member.session_id,
            seconds=outcome.seconds,
            input_tokens=outcome.input_tokens,
            output_tokens=outcome.output_tokens,
            cost=outcome.cost,
            paths=tuple(diff.path for diff in merged.diffs),
            conflicts=tuple(merged.conflicts),
            patch=patch,
            diff=diff,
            left_out=left_out,
        )

    def steer(self, name: str, text: str) -> None:
        """Redirect one running member, or `all` of them."""
        if name != "all" and name not in self._members:
            raise FulgurError(f"no subagent {name!r} is running", hint=f"Running: {', '.join(self._members) or 'none'}")
        for member in self._members.values() if name == "all" else [self._members[name]]:
            member.steer(text)

    def writes(self, path: Path) -> bool:
        """Whether a file lies in the workspace and may be written."""
        return self._files.policy.refusal(path) is None and path.is_relative_to(self.settings.workspace)

    async def change(self, more: More) -> None:
        """Change files of the workspace; never runs during a merge."""
        async with self._merging:
            await asyncio.to_thread(lambda: self._files.commit(more()))

    async def close(self) -> None:
        """Close the connections that this crew opened."""
        await self._links.close()

    def leave(self, member: Member) -> None:
        """Remove a member that has ended."""
        self._members.pop(member.name, None)

    async def merge(self, member: Member, more: More = list) -> Merged:
        """Apply a member's changes to the workspace, in one step with `more`."""
        async with self._merging:
            if (copy := member.copy) is None:
                return Merged(diffs=await asyncio.to_thread(lambda: self._files.commit(more())))
            if large := await asyncio.to_thread(copy.left_out):
                text = f"too large to merge, left out: {', '.join(large)}"
                self._emit(MemberTold(member=member.name, kind="warning", text=text))
            return await asyncio.to_thread(lambda: copy.merged(self._files, more()))

    async def _reviewed(self, member: Member, more: More) -> tuple[Merged, str]:
        """Like `merge`, but ask the person first; also return what they left out, in words. If the workspace changes
        while they read, ask again."""
        if self._review is None or member.copy is None:
            return await self.merge(member, more), ""
        copy = member.copy
        while True:
            shown, conflicts = await asyncio.to_thread(copy.changes, self._files)
            if conflicts or not shown:
                return await self.merge(member, more), ""
            names = ", ".join(self._files.show(change.path) for change in shown)
            answer = await self._review(f"merge what {member.name} changed: {names}", shown)
            async with self._merging:
                if (await asyncio.to_thread(copy.changes, self._files))[0] != shown:
                    continue
                if answer is None:
                    return Merged(), "The person did not allow these changes; none of them is in the project."
                accepted, left_out = answer
                ours = more()
                kept = [change for change in accepted if change.path not in {own.path for own in ours}]
                return Merged(diffs=await asyncio.to_thread(self._files.commit, [*kept, *ours])), left_out

    def _keep(self, member: Member) -> tuple[str, str]:
        """Keep what could not be merged as a patch; return the file and its text."""
        assert member.copy is not None
        folder = self.settings.home / "patches"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = folder / f"{member.session_id}.patch"
        text = "".join(diff.diff for diff in member.copy.diffs())
        file.write_text(text, encoding="utf-8", errors="surrogateescape")
        return str(file), text
