"""What each sandbox guarantees, as promised in `SECURITY.md`; `fulgur doctor` says which guarantees hold here."""

from __future__ import annotations

from fulgur.sandbox import bubblewrap, landlock

WORLDS = ("bubblewrap", "Landlock with mounts", "Landlock without mounts")

# A promise, and a note for each world: "" means it is kept, None that it is not.
PROMISES: dict[str, tuple[str | None, str | None, str | None]] = {
    "nothing outside the workspace is written": ("", "", ""),
    "`.git` and `.fulgur` stay as they are": ("", "", "new files beside them are refused too"),
    "keys and Fulgur's home are not read": ("", "", "but their names are"),
    "no network": ("", "", ""),
    "no socket, queue or shared memory of other programs": ("", "", ""),
    "no signal, trace, limit or priority for other processes": ("", "from Linux 6.12 on", "from Linux 6.12 on"),
    "modes and owners outside stay": ("", "", "those inside too"),
    "file times outside stay": ("", "", None),
    "other processes are not seen": ("", None, None),
    "nothing is left running": ("", "", ""),
}


def world() -> str | None:
    """The best world that works here; None if none does."""
    if bubblewrap.probe().usable:
        return WORLDS[0]
    if landlock.probe().usable:
        return WORLDS[1] if landlock.mounts_work() else WORLDS[2]
    return None


def kept_here() -> tuple[list[str], list[str]]:
    """The promises that hold on this machine, and those that do not."""
    here = world()
    if here is None:
        return [], list(PROMISES)
    kept, broken = [], []
    for promise, worlds in PROMISES.items():
        note = worlds[WORLDS.index(here)]
        if note is None or (note.startswith("from Linux 6.12") and landlock.abi() < 6):
            broken.append(promise)
        else:
            kept.append(f"{promise} ({note})" if note and not note.startswith("from") else promise)
    return kept, broken
