"""Where a session works: policy, sandbox, files, shell and tools, made from the settings."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any, cast

from fulgur.config.settings import Settings
from fulgur.edit.checks.members.process import MemberCheck
from fulgur.errors import FulgurError
from fulgur.sandbox.backend import Sandbox
from fulgur.sandbox.choose import choose
from fulgur.sandbox.policy import Policy
from fulgur.tools.base import Tool
from fulgur.tools.environment import command_environment, withheld
from fulgur.tools.plan import plan_tool
from fulgur.tools.reading import reading_tools
from fulgur.tools.shell import Shell
from fulgur.tools.writing import writing_tools
from fulgur.workspace import folders
from fulgur.workspace.blobs import BlobStore
from fulgur.workspace.files import Files
from fulgur.workspace.snapshots import Snapshots


@dataclass
class Workbench:
    """The tools a turn works with. `refusal` is set if no sandbox works here: then commands are refused."""

    policy: Policy
    files: Files
    shell: Shell
    snapshots: Snapshots
    tools: list[Tool[Any]]
    refusal: FulgurError | None
    sandbox: Sandbox | None
    members: MemberCheck
    environment: dict[str, str]
    withheld: list[str]
    """Variables that commands do not see because they look like secrets."""

    @classmethod
    def make(cls, settings: Settings, session_id: str) -> Workbench:
        """Create everything; nothing is started yet."""
        policy = make_policy(settings)
        blobs = BlobStore(settings.home / "blobs")
        files = Files(policy, blobs, settings.home / "sessions" / f"{session_id}.journal")
        sandbox: Sandbox | None = None
        refusal: FulgurError | None = None
        try:
            sandbox = choose(policy)
        except FulgurError as error:
            refusal = error
        environment = _environment(settings)
        shell = Shell(sandbox or cast(FulgurError, refusal), policy, environment)
        tools: list[Tool[Any]] = [*reading_tools(files), *writing_tools(files), *shell.tools(), plan_tool()]
        digest = hashlib.sha256(os.fsencode(policy.workspace)).hexdigest()[:16]
        snapshots = Snapshots(policy.workspace, blobs, settings.home / "index" / f"{digest}.snapshot")
        members = MemberCheck(policy)
        hidden = withheld(environment)
        return cls(policy, files, shell, snapshots, tools, refusal, sandbox, members, environment, hidden)

    def fits(self, settings: Settings) -> bool:
        """Whether these settings would make an equal workbench; then its shell and background commands stay."""
        return make_policy(settings) == self.policy and _environment(settings) == self.environment

    def close(self) -> list[str]:
        """End the shells and clean up the sandbox; return the background commands that were still running."""
        ran = self.shell.close()
        self.members.close()
        if self.sandbox is not None:
            self.sandbox.close()
        return ran


def _environment(settings: Settings) -> dict[str, str]:
    return command_environment(
        settings.text("shell_environment_policy.inherit") or "all",
        settings.strings("shell_environment_policy.exclude"),
        cast("dict[str, str]", settings.get("shell_environment_policy.set") or {}),
        secrets=settings.flag("shell_environment_policy.ignore_default_excludes"),
    )


def make_policy(settings: Settings) -> Policy:
    """The sandbox policy that the settings ask for."""
    roots = tuple(folders.expanded(root) for root in settings.strings("sandbox_workspace_write.writable_roots"))
    return Policy.make(
        settings.sandbox_mode,
        settings.workspace,
        settings.home,
        roots,
        settings.flag("sandbox_workspace_write.network_access"),
        hide_secrets=settings.flag("sandbox_hide_secrets"),
        hide=[folders.expanded(place) for place in settings.strings("sandbox_hidden")],
    )
