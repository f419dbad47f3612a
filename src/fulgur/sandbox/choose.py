"""Chooses the sandbox: bubblewrap, else Landlock, else a refusal that says why and what to do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.sandbox import bubblewrap, landlock
from fulgur.sandbox.backend import Launch, Probe, Sandbox
from fulgur.sandbox.policy import Policy


class Unconfined:
    """`danger-full-access`: commands run unchanged."""

    name = "none"

    def launch(self, command: Sequence[str], policy: Policy, folder: Path) -> Launch:
        """No sandbox."""
        return Launch(list(command))

    def stale(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """Nothing was put anywhere."""


def probes() -> list[Probe]:
    """Probe each backend on this machine, best first."""
    return [bubblewrap.probe(), landlock.probe()]


def choose(policy: Policy) -> Sandbox:
    """The best backend that can enforce the policy here; FulgurError if none can."""
    if policy.mode == "danger-full-access":
        return Unconfined()
    if bubblewrap.probe().usable:
        return bubblewrap.Bubblewrap()
    if landlock.probe().usable:
        return landlock.Landlock()
    why = "; ".join(f"{probe.name}: {probe.reason}" for probe in probes())
    raise FulgurError(
        f"no sandbox works here, so commands are refused ({why})",
        hint="Install bubblewrap (`apt install bubblewrap`, `dnf install bubblewrap`), or, if this machine is itself "
        "a throw-away, choose -c sandbox_mode=danger-full-access.",
    )


def shortcomings(policy: Policy) -> str | None:
    """What the active backend cannot do, and why a better one is not used; None if there is nothing to report."""
    first, *others = probes()
    if policy.mode == "danger-full-access" or first.usable:
        return None
    for probe in others:
        if probe.usable and probe.gaps:
            why = f"since {first.name} does not work ({first.reason})"
            return f"the sandbox is {probe.name}, {why}: {'; '.join(probe.gaps)}"
    return None


def describe(policy: Policy, withheld: Sequence[str] = ()) -> str:
    """Describe in one line for /status: the mode, what enforces it, and what commands do not see (`withheld`:
    variables)."""
    variables = f"; variables not passed on: {', '.join(withheld)}" if withheld else ""
    if policy.mode == "danger-full-access":
        return f"danger-full-access: no sandbox{variables}"
    hidden = f"; hidden: {', '.join(map(_short, policy.hidden))}" if policy.hidden else ""
    for probe in probes():
        if probe.usable:
            return f"{policy.describe()}, by {probe.name}{hidden}{variables}"
    return f"{policy.describe()}: no sandbox works here, commands are refused"


def _short(path: Path) -> str:
    home = Path(os.path.expanduser("~"))
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
