"""A worker for the tests: it can answer, fail, and die."""

import os
import signal
from typing import Any


def open_worker(ready: bool = True) -> dict[str, Any]:
    if not ready:
        os.kill(os.getpid(), signal.SIGILL)

    def crash() -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def fail() -> None:
        raise ValueError("no such setting")

    def add(a: int, b: int) -> int:
        print("a library that prints")
        return a + b

    return {"add": add, "crash": crash, "fail": fail}
