"""Keeps iterations of the event loop short while large requests are processed.

Every iteration of the loop releases the GIL for a moment. A thread that takes it then, and makes one long call in C,
blocks the loop for as long as that call lasts; with several such threads the loop waits for all of them. So one thread
processes all large requests, and rests as long as it worked.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MOST_REST_S = 0.05
SWITCH_S = 0.001  # a thread that runs Python gives the GIL back to the loop after this long
COLLECT = (1000, 20, 20)  # a full collection takes ten milliseconds with many clients, so it must be rare
_MMAP_BYTES = 1 << 20  # a block of memory this large goes back to the system when it is freed
_TRIM_BYTES = 16 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h

_thread = ThreadPoolExecutor(1, thread_name_prefix="large")
_rested = 0.0  # when the thread may continue


async def off_loop(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do the work on the thread for large requests, when it is its turn."""
    job = functools.partial(_with_rest, functools.partial(work, *args, **kwargs))
    return await asyncio.get_running_loop().run_in_executor(_thread, job)


def _with_rest(work: Callable[[], T]) -> T:
    global _rested
    time.sleep(max(0.0, _rested - time.monotonic()))
    began = time.thread_time()
    try:
        return work()
    finally:
        _rested = time.monotonic() + min(MOST_REST_S, time.thread_time() - began)


def tune_interpreter() -> None:
    """Tune the interpreter and malloc of a process that only serves; call it when everything permanent is loaded."""
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.set_threshold(*COLLECT)
    gc.freeze()  # what exists now is never scanned again: the time of a full collection grows with the objects it scans
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
