"""`fulgur serve` with a watch on its event loop: how long one turn of the loop keeps everybody else waiting.

    python -m tests.attacks.watched FILE serve …

On SIGUSR1 the longest turns since the last signal are written to FILE as JSON and forgotten. A turn is what happens
between two looks at the sockets; collections of garbage are named beside the callbacks that they interrupt. `cpu_ms` is
the loop's own work; `held_ms` adds that of the process's other threads, which may hold the interpreter meanwhile;
`wall_ms` adds what other processes took. On a busy machine only the first two say something about the server.
"""

from __future__ import annotations

import asyncio.events
import gc
import json
import selectors
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

KEPT = 8
LONG_MS = 1.0  # a callback of at least so long is named


class Watch:
    """The longest turns, each with the callbacks that took most of it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.turns: list[dict[str, Any]] = []
        self._began: tuple[float, float, float] | None = None
        self._asked: float | None = None  # processor time when the loop looked without waiting
        self._callbacks: list[tuple[float, str]] = []
        self._count = 0

    def looked(self) -> None:
        asked, self._asked = self._asked, None
        self._began = time.perf_counter(), time.thread_time(), asked or time.process_time()
        self._callbacks = []
        self._count = 0

    def looks(self, *, waits: bool) -> None:
        self._asked = None if waits else time.process_time()
        if self._began is None:
            return
        wall = (time.perf_counter() - self._began[0]) * 1000
        cpu = (time.thread_time() - self._began[1]) * 1000
        held = (time.process_time() - self._began[2]) * 1000
        if max(held, cpu) < LONG_MS:
            return
        slow = [f"{spent:.1f} {name}" for spent, name in sorted(self._callbacks, reverse=True)[:3]]
        numbers = {"held_ms": round(held, 1), "cpu_ms": round(cpu, 1), "wall_ms": round(wall, 1)}
        self.turns.append({**numbers, "callbacks": self._count, "slow": slow})
        if len(self.turns) > 10 * KEPT:
            self._keep_longest()

    def _keep_longest(self) -> None:
        longest = [sorted(self.turns, key=lambda turn, k=kind: -turn[k])[:KEPT] for kind in ("held_ms", "cpu_ms")]  # type: ignore[misc]
        self.turns = longest[0] + [turn for turn in longest[1] if turn not in longest[0]]

    def ran(self, name: str, seconds: float) -> None:
        self._count += 1
        if seconds * 1000 >= LONG_MS:
            self._callbacks.append((seconds * 1000, name))

    def tell(self, *_: object) -> None:
        self._keep_longest()
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(self.turns))
        part.replace(self.file)
        self.turns = []


def _name(handle: asyncio.events.Handle) -> str:
    """Not its repr: that would write out the whole of a large message."""
    callback = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {getattr(owner.get_coro(), '__qualname__', owner)}"
    return str(getattr(callback, "__qualname__", type(callback).__name__))


def install(watch: Watch) -> None:
    """Only the main thread's loop is watched: the server has no other."""
    main = threading.get_ident()
    select, run = selectors.EpollSelector.select, asyncio.events.Handle._run

    def watched_select(self: Any, timeout: float | None = None) -> Any:
        here = threading.get_ident() == main
        if here:
            watch.looks(waits=timeout is None or timeout > 0)
        ready = select(self, timeout)
        if here:
            watch.looked()
        return ready

    def watched_run(self: asyncio.events.Handle) -> None:
        began, name = time.thread_time(), _name(self)
        run(self)
        watch.ran(name, time.thread_time() - began)

    collecting = 0.0

    def collected(phase: str, info: dict[str, int]) -> None:
        nonlocal collecting
        if threading.get_ident() != main:
            return
        if phase == "start":
            collecting = time.thread_time()
        else:
            watch.ran(f"collection of generation {info['generation']}", time.thread_time() - collecting)

    gc.callbacks.append(collected)
    selectors.EpollSelector.select = watched_select  # type: ignore[method-assign]
    asyncio.events.Handle._run = watched_run  # type: ignore[attr-defined]
    signal.signal(signal.SIGUSR1, watch.tell)


if __name__ == "__main__":
    from fulgur.ui.cli import main

    install(Watch(Path(sys.argv[1])))
    sys.exit(main(sys.argv[2:]))
