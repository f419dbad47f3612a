"""What keeps a turn of the event loop short while large requests are worked on.

Every turn of the loop gives the interpreter away for a moment. A thread that takes it then, and makes one long call in
C, holds up the loop for as long as that call lasts; with several such threads the loop waits for all of them. So large
requests are worked on by one thread, which rests as long as it worked.
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
SWITCH_S = 0.001  # a thread that runs Python gives the interpreter back to the loop after so long
COLLECT = (1000, 20, 20)  # a collection of everything takes ten milliseconds beside many clients: seldom, then
_MMAP_BYTES = 1 << 20  # a block of memory this large goes back to the system when it is freed
_TRIM_BYTES = 16 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h

_thread = ThreadPoolExecutor(1, thread_name_prefix="large")
_rested = 0.0  # when the thread may go on


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


def settle() -> None:
    """For a process that only serves: call it when what stays for good has been loaded."""
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.set_threshold(*COLLECT)
    gc.freeze()  # what is there now is never looked at again: a full collection takes as long as there are objects
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
