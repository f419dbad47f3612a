"""Search where ripgrep is not installed, in a separate process: one JSON request in, one match per line out.

A regular expression can take forever; then the process is killed, and the screen never froze.
"""

from __future__ import annotations

import fnmatch
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.workspace import beneath
from fulgur.workspace.ignore import walk

_LARGEST = 16 << 20


def matches(
    pattern: str, start: Path, root: Path, glob: str | None, limit: int, longest: int, hidden: list[str]
) -> Iterator[tuple[str, int, str]]:
    """Yield path, line number and line, ordered by path."""
    regex = re.compile(pattern)
    top = root if start.is_relative_to(root) else start
    paths = [start] if start.is_file() else (Path(entry.path) for entry in walk(top, start=start))
    count = 0
    for path in paths:
        if (glob and not fnmatch.fnmatch(path.name, glob)) or any(path.is_relative_to(place) for place in hidden):
            continue
        try:
            data = beneath.read(top if path != start else Path(path.anchor), path, _LARGEST)
        except (OSError, FulgurError):
            continue
        if b"\0" in data[:8192]:
            continue
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), 1):
            if regex.search(line):
                yield str(path), number, line[:longest]
                count += 1
                if count >= limit:
                    return


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    request["start"], request["root"] = Path(request["start"]), Path(request["root"])
    try:
        for match in matches(**request):
            print(json.dumps(match))
    except re.error as error:
        print(json.dumps({"error": f"{request['pattern']!r} is not a regular expression: {error}"}))
    except RecursionError:
        print(json.dumps({"error": f"{request['pattern'][:100]!r} is nested too deeply"}))


if __name__ == "__main__":
    main()
