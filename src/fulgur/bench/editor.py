"""`fulgur bench editor`: from a key to ghost text, and from a change to the next edit, with a buffer of 2,000 lines.

A real server with the largest embedded model gets, over one HTTP connection, the requests that the VS Code extension
sends key by key as a person types a line. The editor's own drawing is not included.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from fulgur.bench.report import Report, progress
from fulgur.errors import FulgurError
from fulgur.workspace.folders import embedded_models

_LINES = 2000
_PREFIX, _SUFFIX, _TOKENS = 12_000, 4_000, 48  # the same as in apps/vscode/src/completions.ts
_TYPED = (
    "    for name, price in sorted(prices.items()):\n        total = total + price * rate_of(name)\n    return total\n"
)
_WARM_UP = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, default=100, help="how many keys are typed (default 100)")
    parser.add_argument("--changes", type=int, default=20, help="how many changes are followed (default 20)")


def run(args: argparse.Namespace) -> Report:
    """Measure; report medians and 95th percentiles."""
    folders = embedded_models()
    if not folders:
        raise FulgurError("no embedded model is installed")
    return asyncio.run(_measure(folders[0], args.keys, args.changes))


async def _measure(folder: Path, keys: int, changes: int) -> Report:
    import aiohttp

    from fulgur.client.local import ensure_server
    from fulgur.client.once import LocalServer

    report = Report("editor")
    with tempfile.TemporaryDirectory(prefix="fulgur-bench-") as home, progress("bench editor", 3) as begin:
        begin("server")
        base = await ensure_server(LocalServer(Path(home), port=0, model=folder))
        try:
            async with aiohttp.ClientSession(base_url=f"{base}/") as session:

                async def ask(path: str, body: dict[str, Any]) -> tuple[dict[str, Any], float]:
                    began = time.perf_counter()
                    async with session.post(path, json={"model": folder.name, **body}) as answer:
                        told: dict[str, Any] = await answer.json()
                    if answer.status != 200:
                        raise FulgurError(str(told.get("error", {}).get("message")))
                    return told, (time.perf_counter() - began) * 1000

                begin("keys")
                ghost = [await ask("completions", body) for body in _key_bodies(keys + _WARM_UP)]
                begin("changes")
                following = [await ask("edits/suggest", body) for body in _change_bodies(changes + 1)]
        finally:
            await _stop(Path(home))
    times = [ms for _, ms in ghost[_WARM_UP:]]
    report.add("editor.ghost_p50_ms", statistics.median(times), "ms", bar=40, at_most=True)
    report.add("editor.ghost_p95_ms", statistics.quantiles(times, n=20)[-1], "ms", bar=90, at_most=True)
    fresh = [_fresh_tokens(told) for told, _ in ghost[_WARM_UP:]]
    report.add("editor.key_tokens", statistics.mean(fresh), "tokens of the prompt computed a key")
    later = following[1:]
    report.add("editor.next_p50_ms", statistics.median(ms for _, ms in later), "ms", bar=150, at_most=True)
    report.add("editor.next_max_ms", max(ms for _, ms in later), "ms")
    asked = [ms for told, ms in later if told["usage"]["prompt_tokens"]]
    if asked:
        report.add("editor.next_asked_p50_ms", statistics.median(asked), "ms")
    found = sum(bool(told["suggestions"]) for told, _ in later)
    report.notes.append(
        f"{folder.name}, {_LINES} lines, {len(times)} keys; {found} of {len(later)} changes had a next edit, "
        f"{len(asked)} asked the model"
    )
    return report


def _fresh_tokens(told: dict[str, Any]) -> int:
    """The prompt's tokens that were not in the cache."""
    usage = told["usage"]
    return int(usage["prompt_tokens"]) - int(usage["prompt_tokens_details"]["cached_tokens"])


def _buffer() -> str:
    """A module of functions, all like real code and all different."""
    parts = [
        f"def step_{n}(values, factor_{n}):\n    found = []\n    for value in values:\n"
        f"        found.append(value * factor_{n} + {n})\n    return found, factor_{n}\n\n\n"
        for n in range(_LINES // 7)
    ]
    return "".join(parts)


def _key_bodies(count: int) -> list[dict[str, Any]]:
    """The bodies that the extension sends, one per key, while a function in the middle of the buffer is typed."""
    text = _buffer()
    at = text.index("def step_140(")
    head, after = text[:at] + "def total_of(prices, rate_of):\n    total = 0\n", text[at:][:_SUFFIX]
    bodies = []
    for number in range(count):
        typed = _TYPED[: 1 + number % len(_TYPED)]
        bodies.append(
            {
                "prompt": (head + typed)[-_PREFIX:],
                "suffix": after,
                "path": "src/steps.py",
                "max_tokens": _TOKENS,
                "stop": ["\n"],
                "temperature": 0,
            }
        )
    return bodies


def _change_bodies(count: int) -> list[dict[str, Any]]:
    """Alternate between a parameter renamed by hand, whose uses follow, and a value that is no longer returned, which
    the model must judge."""
    text = _buffer()
    bodies = []
    for number in range(count):
        n = 10 + 7 * number
        old, new = (f", factor_{n})", f", ratio_{n})") if number % 2 else (f"found, factor_{n}", "found")
        at = text.index(old)
        place = {"line": text[:at].count("\n"), "character": 20}
        changed = text[:at] + new + text[at + len(old) :]
        bodies.append({"path": "src/steps.py", "text": changed, "previous": text, "position": place})
    return bodies


async def _stop(home: Path) -> None:
    """End the server that this bench started."""
    import json
    import os
    import signal

    try:
        pid = int(json.loads((home / "server.json").read_bytes())["pid"])
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError, KeyError):
        return
    for _ in range(100):
        await asyncio.sleep(0.05)
        if not Path(f"/proc/{pid}").exists():
            return
