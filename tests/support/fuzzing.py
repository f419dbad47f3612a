"""Seeded rounds for fuzzers: a fixed number in the suite, as long as FULGUR_FUZZ_SECONDS says in `make fuzz`.

A failure names its seed: `FULGUR_FUZZ_SEED=N` runs that round alone.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator


def rounds(number: int) -> Iterator[tuple[int, random.Random]]:
    """Seeds and their generators; the first `number` are the same every time."""
    if chosen := os.environ.get("FULGUR_FUZZ_SEED"):
        yield int(chosen), random.Random(int(chosen))
        return
    end = time.monotonic() + float(os.environ.get("FULGUR_FUZZ_SECONDS", "0"))
    seed = 0
    while seed < number or time.monotonic() < end:
        yield seed, random.Random(seed)
        seed += 1


def enough(count: int, least: int) -> None:
    """The rounds were worth something: so many of them got as far as they should."""
    assert count >= least or "FULGUR_FUZZ_SEED" in os.environ, f"only {count}"
