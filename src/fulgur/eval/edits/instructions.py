"""Instructions for these packages in developers' own words, and how each result is judged.

`instructions/` has one file per package. An instruction has a place (`at`), the words (`say`) and one criterion:
    replace    [old, new] or [file, old, new]: the file as it is with these texts replaced, compared as a syntax tree
    rename     [old, new]: this name replaced wherever it is an identifier; `within` a function, or in the whole project
    run        code that runs in the project afterwards and must not raise
    refuse     nothing may change; the refusal must match this regular expression
`or_replace`, `or_run` and `or_rename` (several pairs) are alternative correct results.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fulgur.errors import FulgurError
from fulgur.eval.projects import FRESH_PACKAGES, PACKAGES, Package

FOLDER = Path(__file__).with_name("instructions")
WAYS = ("replace", "rename", "run", "refuse")
KEYS = {"at", "say", "within", "or_replace", "or_run", "or_rename", *WAYS}


@dataclass(frozen=True)
class Instruction:
    """One entry of a package's file."""

    package: Package
    number: int
    at: str
    say: str
    judge: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.package.name} {self.number}"

    @property
    def possible(self) -> bool:
        """Whether a correct edit exists."""
        return any(way in self.judge for way in ("replace", "rename", "run", "or_run", "or_replace", "or_rename"))


def read_instructions(package: Package) -> list[Instruction]:
    """The instructions of one package, in the order of its file."""
    path = FOLDER / f"{package.name}.toml"
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["edit"]
    found = []
    for number, entry in enumerate(entries, 1):
        ways = [way for way in WAYS if way in entry]
        if unknown := set(entry) - KEYS:
            raise FulgurError(f"{path.name}, entry {number}: unknown key {sorted(unknown)[0]}")
        if len(ways) != 1:
            raise FulgurError(f"{path.name}, entry {number}: needs one of {', '.join(WAYS)}")
        judge = {key: value for key, value in entry.items() if key not in ("at", "say")}
        found.append(Instruction(package, number, entry["at"], entry["say"], judge))
    return found


def all_instructions() -> list[Instruction]:
    packages = [*PACKAGES.values(), *FRESH_PACKAGES.values()]
    return [instruction for package in packages for instruction in read_instructions(package)]
