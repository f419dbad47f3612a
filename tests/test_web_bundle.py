"""The web app that is shipped was built from the sources that are here. To build it: `npm run build` in apps/web."""

import gzip
import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "apps" / "web"
BUILT = ROOT / "src" / "fulgur" / "assets" / "web"


def digest(files: Iterable[tuple[str, Path]]) -> str:
    """As build.mjs does it."""
    found = hashlib.sha256()
    for name, path in files:
        content = path.read_bytes()
        found.update(f"{name}\0{len(content)}\0".encode())
        found.update(content)
    return found.hexdigest()


def test_the_bundle_is_not_stale() -> None:
    names = sorted(
        [f"src/{path.name}" for path in (SOURCES / "src").iterdir()]
        + ["build.mjs", "package-lock.json", "tsconfig.json"]
    )
    record = json.loads((BUILT / "bundle.json").read_text())
    assert record["sources"] == digest((name, SOURCES / name) for name in names), "run `npm run build` in apps/web"
    built = {path.name: digest([(path.name, path)]) for path in BUILT.iterdir() if path.name != "bundle.json"}
    assert record["files"] == built, "a built file was changed by hand"


def test_the_first_load_is_small() -> None:
    page = (BUILT / "index.html").read_bytes()
    named = re.findall(rb'(?:src|href)="/app/([^"]+)"', page)
    assert len(named) == 3
    first = [page, *((BUILT / name.decode()).read_bytes() for name in named)]
    assert sum(len(gzip.compress(content)) for content in first) < 70_000
