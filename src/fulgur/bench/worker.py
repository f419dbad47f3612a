"""A measurement in its own process: the model stays loaded there, and each request and answer is one line of JSON.

A crash of the process raises `WorkerDied`, so that a peer that dies on some settings ends neither the run nor the
comparison.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fulgur.sandbox import start

Operation = Callable[..., Any]


class WorkerDied(Exception):
    """The process ended, or an operation in it failed."""


class Worker:
    """Starts `open_worker(**options)` of a module in a child process; `call` runs the operations it returned."""

    def __init__(self, module: str, **options: Any) -> None:
        command = start.python("fulgur.bench.worker", module, json.dumps(options))
        self._process = start.popen(
            command, Path.cwd(), stdin=start.PIPE, stdout=start.PIPE, stderr=start.DEVNULL, text=True
        )
        self._read()  # wait until the model is loaded

    def call(self, operation: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([operation, arguments]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerDied(self._ending()) from None
        return self._read()

    def close(self) -> None:
        """End the process; nothing is lost with it."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # a request that was never read
                    pipe.close()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerDied(self._ending())
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerDied(answer["error"])
        return answer["value"]

    def _ending(self) -> str:
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def serve(module: str, options: dict[str, Any]) -> None:
    """The child's side: load once, then answer until standard input ends."""
    out = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is not an answer

    def answer(value: dict[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    try:
        operations: dict[str, Operation] = importlib.import_module(module).open_worker(**options)
        answer({"value": None})
        for line in sys.stdin:
            name, arguments = json.loads(line)
            answer({"value": operations[name](**arguments)})
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
