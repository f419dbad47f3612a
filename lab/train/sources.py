"""The list of source packages, `sources.txt`: one per line as `name version licence split megabytes registry`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fulgur.errors import FulgurError
from lab.train.licences import permitted

LIST = Path(__file__).with_name("sources.txt")


@dataclass(frozen=True)
class Source:
    name: str
    version: str
    licence: str
    split: str  # "train" or "heldout"
    megabytes: float  # the most text to take, so that no package dominates
    registry: str  # "pypi" or "npm"

    @property
    def key(self) -> str:
        return normalise(self.name)


def normalise(name: str) -> str:
    """Normalise a package name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_sources(path: Path = LIST) -> list[Source]:
    sources = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split()
        if len(fields) != 6 or fields[3] not in ("train", "heldout") or fields[5] not in ("pypi", "npm"):
            raise FulgurError(f"{path.name}:{number}: not `name version licence split megabytes registry`: {line!r}")
        source = Source(fields[0], fields[1], fields[2], fields[3], float(fields[4]), fields[5])
        if not permitted(source.licence.replace("+", " AND ").replace("|", " OR ")):
            raise FulgurError(
                f"{path.name}:{number}: {source.name} has the licence {source.licence}, which is not permissive"
            )
        sources.append(source)
    return sources


def heldout_names(path: Path = LIST) -> frozenset[str]:
    return frozenset(source.key for source in read_sources(path) if source.split == "heldout")
