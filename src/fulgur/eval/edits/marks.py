"""The ✓ that `fulgur edit --write` gives an edit, and whether the project works afterwards."""

from __future__ import annotations

from fulgur.edit.checks import check
from fulgur.edit.checks.trial import try_out
from fulgur.edit.checks.verdict import verdict
from fulgur.edit.editor import Proposal, member_check, names_added, unresolved
from fulgur.errors import FulgurError
from fulgur.eval.projects import Project
from fulgur.workspace.folders import home


class Marks:
    """The check marks in one project; its current test results are the baseline."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._before = project.test()
        if problem := self._before.missing or self._before.broken:
            raise FulgurError(f"the tests of {project.package.stem} do not run: {problem}")
        self._members = member_check(project.folder / "any.py", home())

    def of(self, proposal: Proposal) -> tuple[bool, str]:
        """Whether the edit gets a ✓, and the note on its tests."""
        document = proposal.document
        found = check(document.path, document.text, proposal.text, self._members)
        found.names = unresolved(found.names, names_added(proposal.others))
        trial = try_out(self._project.folder, proposal.changes(), home())
        return verdict(found, trial).holds and not found.names, trial.note or "; ".join(trial.problems)[:300]

    def broken(self) -> str:
        """What is broken in the project on disk that worked before; empty when nothing is."""
        after = self._project.test()
        failed = ", ".join(sorted(after.failed - self._before.failed)[:3])
        return self._project.imports() or after.missing or after.broken or failed

    def close(self) -> None:
        self._members.close()
