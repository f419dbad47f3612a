"""What an edit would change: shown to the person before it is made, and what they accept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fulgur.agent.loop.approvals import Answered
from fulgur.workspace.files import Change, FileDiff, Files, diff_of
from fulgur.workspace.hunks import Hunk, hunks_of, without


@dataclass(frozen=True)
class Planned:
    """Changes, as one diff per file and as hunks that can be rejected one by one."""

    changes: list[Change]
    diffs: list[FileDiff]
    hunks: list[Hunk]

    @classmethod
    def of(cls, changes: Sequence[Change], files: Files) -> Planned:
        """Build the diffs and hunks; `files` gives the paths to show."""
        diffs = [diff_of(files.show(c.path), c.before, c.after) for c in changes if c.before != c.after]
        return cls([*changes], diffs, hunks_of(changes, files.show))

    @property
    def shown(self) -> tuple[list[str], str, list[str]]:
        """The paths, the whole diff, and the diff hunk by hunk."""
        paths = [diff.path for diff in self.diffs]
        return paths, "".join(diff.diff for diff in self.diffs), [hunk.diff for hunk in self.hunks]

    def accepted(self, answer: Answered) -> tuple[list[Change], str]:
        """Return the accepted changes, and the rejected ones in words for the model: empty if there are none."""
        if not answer.rejected:
            return self.changes, ""
        rejected = {number - 1 for number in answer.rejected}
        left_out = "".join(hunk.diff for place, hunk in enumerate(self.hunks) if place in rejected)
        counted = f"The person left out {len(rejected)} of {len(self.hunks)} hunks"
        return without(self.changes, self.hunks, rejected), f"{counted}. These lines were not changed:\n{left_out}"
