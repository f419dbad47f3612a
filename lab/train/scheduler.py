"""Runs commands in parallel: in the background, tried at most twice, with every event in one log and one status
line."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

TRIES = 2


class Scheduler:
    """Runs commands in `folder`. A command that fails twice is recorded in FOLDER/failed; the others go on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.began = time.time()
        self.stopping = False
        self._running: set[subprocess.Popen[bytes]] = set()
        self._pool = ThreadPoolExecutor(max_workers=16)  # its threads only wait; never this many at once
        self._lock = threading.RLock()  # reentrant: a signal handler may call `stop` inside any of these

    def say(self, text: str) -> None:
        """Write one line to the log and, for polling, to the status file."""
        line = f"{time.strftime('%H:%M:%S', time.gmtime())} [{time.time() - self.began:.0f} s] {text}\n"
        with self._lock:
            (self.folder / "status.txt").write_text(line)
            with (self.folder / "log").open("a") as log:
                log.write(line)

    def start(self, work: Callable[[], bool]) -> Future[bool]:
        """Run this in the background."""
        return self._pool.submit(work)

    def attempt(self, name: str, command: Sequence[str], *, nice: int = 0, seconds: float | None = None) -> bool:
        """Run a command, and once more if it fails or takes longer than `seconds`. Its output goes to NAME.log."""
        log = self.folder / f"{name}.log"
        for number in range(1, TRIES + 1):
            if self.stopping:
                return False
            self.say(f"{name} (try {number})")
            if self._execute(command, log, nice, seconds) == 0:
                self.say(f"{name} done: {' '.join(last_lines(log, 1))}")
                return True
            if self.stopping:
                return False
            self.say(f"{name} FAILED: {' '.join(last_lines(log, 3))}")
            shutil.copy(log, self.folder / f"{name}-failed.log")
        with self._lock, (self.folder / "failed").open("a") as failed:
            failed.write(f"{name}\n")
        return False

    def stop(self) -> None:
        """End every command; a training stage writes a checkpoint first."""
        self.stopping = True
        with self._lock:
            for process in self._running:
                signal_group(process, signal.SIGTERM)

    def _execute(self, command: Sequence[str], log: Path, nice: int, seconds: float | None) -> int:
        with log.open("wb") as output, self._lock:
            if self.stopping:
                return 1
            # In a separate process group, so that whatever the command starts ends with it.
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
        if nice:
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PGRP, process.pid, nice)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            signal_group(process, signal.SIGKILL)
            return process.wait()
        finally:
            with self._lock:
                self._running.discard(process)


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def last_lines(path: Path, count: int) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]


def until(there: Callable[[], bool], job: Future[bool]) -> None:
    """Wait for a condition while the job that brings it about still runs."""
    while not there() and not job.done():
        time.sleep(0.2)
