"""Tries out untrusted grammars in a process that may die, with limits on time, memory, stack and size.

llguidance is fast on what people write, but a schema of a few hundred bytes can keep it busy for minutes, take all
memory or overflow the stack. So one process per model (`python -m fulgur.backends.compile FD MODEL`) holds the
vocabulary and forks for every grammar: the fork compiles it, builds its matcher and takes some steps. A grammar that
survives that is safe for the engine; for any other, its sender gets an error and nobody else notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import hashlib
import json
import os
import random
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fulgur.errors import FulgurError
from fulgur.sandbox import start as processes
from fulgur.text.grammar import Grammar, GrammarMatcher, GrammarSpec

if TYPE_CHECKING:
    from fulgur.text.tokenizer import Tokenizer

MAX_SOURCE = 512 << 10  # characters
CPU_SECONDS = 2
WALL_SECONDS = 6.0  # the machine may be busy
MEMORY = 256 << 20  # address space of a fork beyond what it began with
GROWTH = 48 << 20  # resident bytes that a matcher may take in the engine
STACK = 1 << 20  # the engine has eight times as much
STEPS = 16  # tokens of the trial
FORKS = max(2, min(8, os.cpu_count() or 2))  # at work at a time
SPARES = 2  # forked ahead: a fork takes longer than a small grammar
SLOW_AFTER = 0.25  # seconds; then a fork is slow: `SLOW_FORKS` of them go on, the others make room
SLOW_FORKS = max(1, FORKS // 4)
QUEUE = 64
QUICK = 0.03  # seconds; what takes longer lowers its priority further
_NICE = 5
_SLOW_NICE = 14  # added to `_NICE`
_KEPT = 1024  # verdicts
_PR_SET_PDEATHSIG = 1  # of the kernel's prctl

# Verdicts that depend on the machine at that moment. They are not kept: the same grammar may pass later.
BUSY, KILLED, SLOW = "busy", "killed", "slow"


class GrammarBusy(FulgurError):
    """The grammar was not tried out to the end, mostly because there are too many hard ones; it may pass later."""


_TRANSIENT: dict[str, tuple[type[FulgurError], str, str]] = {
    BUSY: (GrammarBusy, "Too many complex grammars are being compiled.", "Try again in a few seconds."),
    KILLED: (
        GrammarBusy,
        "The process that compiled the grammar was killed, perhaps because memory ran out.",
        "Try again in a few seconds.",
    ),
    SLOW: (
        FulgurError,
        f"The grammar was not compiled within {WALL_SECONDS:g} s.",
        "Make the grammar simpler, or try again when the machine is less busy.",
    ),
}


class GrammarCompiler:
    """The server's side: asks for verdicts, caches them, and restarts the process when it is gone."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()
        self._asked: dict[bytes, asyncio.Future[str | None]] = {}
        self._process: processes.Process[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start the process, so that the first grammar need not wait for it."""
        async with self._starting:
            if self._writer is not None:
                return
            ours, theirs = socket.socketpair()
            with theirs:
                model = str(Path(self._model).absolute())
                self._process = processes.popen(
                    processes.python("fulgur.backends.compile", str(theirs.fileno()), model),
                    processes.ROOT,
                    pass_fds=[theirs.fileno()],
                    stdout=processes.DEVNULL,
                    stderr=processes.DEVNULL,
                )
            reader, self._writer = await asyncio.open_unix_connection(sock=ours)
            self._reading = asyncio.create_task(self._read(reader, self._process))

    async def check(self, spec: GrammarSpec) -> None:
        """Raises FulgurError for a grammar that cannot be used, GrammarBusy when it cannot be tried out now."""
        if len(spec.source) > MAX_SOURCE:
            raise FulgurError(
                f"The grammar has {len(spec.source):,} characters; at most {MAX_SOURCE:,} are compiled.",
                hint="Make the grammar shorter.",
            )
        key = hashlib.sha256(f"{spec.kind}\0{spec.source}".encode("utf-8", "surrogatepass")).digest()
        if key in self._verdicts:
            self._verdicts.move_to_end(key)
            verdict = self._verdicts[key]
        else:
            asked = self._asked.get(key)
            if asked is None:
                asked = self._asked[key] = asyncio.get_running_loop().create_future()
                try:
                    await self._ask(key, spec)
                except BaseException:  # it was never sent, so nobody would answer those who ask for it later
                    self._settle(key, BUSY)
                    raise
            verdict = await asyncio.shield(asked)
        if verdict in _TRANSIENT:
            error, message, hint = _TRANSIENT[verdict]
            raise error(message, hint=hint)
        if verdict is not None:
            message, _, hint = verdict.partition("\n")
            raise FulgurError(message, hint=hint or None)

    async def close(self) -> None:
        reading, self._reading = self._reading, None
        if self._writer is not None:
            self._writer.close()
        if reading is not None:
            await reading

    async def _ask(self, key: bytes, spec: GrammarSpec) -> None:
        line = json.dumps({"id": key.hex(), "kind": spec.kind, "source": spec.source}).encode() + b"\n"
        await self.start()
        assert self._writer is not None
        self._writer.write(line)

    async def _read(self, reader: asyncio.StreamReader, process: processes.Process[bytes]) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                answer = json.loads(line)
                self._settle(bytes.fromhex(answer["id"]), answer["verdict"])
        self._writer = None
        for key in list(self._asked):
            self._settle(key, BUSY)
        await asyncio.to_thread(process.wait)

    def _settle(self, key: bytes, verdict: str | None) -> None:
        future = self._asked.pop(key, None)
        if future is not None and not future.done():
            future.set_result(verdict)
        if verdict not in _TRANSIENT:
            self._verdicts[key] = verdict
            if len(self._verdicts) > _KEPT:
                self._verdicts.popitem(last=False)


# --- the process ---


@dataclass
class _Fork:
    pid: int
    hear: int  # the pipe its verdict comes from
    give: int  # the pipe its job goes to
    job: str = ""
    started: float = 0.0
    heard: bytearray = field(default_factory=bytearray)
    slow: bool = False
    verdict: str | None = None  # why it was ended


class _Worker:
    """Gives each job to a separate fork. It has a single thread, because a fork copies only one."""

    def __init__(self, connection: socket.socket, tokenizer: Tokenizer) -> None:
        self._connection = connection
        self._tokenizer = tokenizer
        self._buffer = bytearray()
        self._waiting: deque[dict[str, Any]] = deque()
        self._spares: list[_Fork] = []
        self._forks: dict[int, _Fork] = {}  # at work, by `hear`

    def run(self) -> None:
        """Work until the server closes the socket. No fork is left behind, however this ends."""
        try:
            self._work()
        finally:
            for fork in [*self._forks.values(), *self._spares]:
                os.kill(fork.pid, signal.SIGKILL)

    def _work(self) -> None:
        while True:
            while len(self._spares) < SPARES:
                self._spares.append(self._fork())
            patience = 0.02 if self._forks else None
            socket_fd = self._connection.fileno()
            readable, _, _ = select.select([socket_fd, *self._forks], [], [], patience)
            if socket_fd in readable and not self._take_jobs():
                break
            for pipe in readable:
                if pipe != socket_fd:
                    self._hear(pipe)
            self._end_slow()
            while self._waiting and len(self._forks) < FORKS:
                self._give(self._waiting.popleft())

    def _take_jobs(self) -> bool:
        data = self._connection.recv(1 << 18)
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            job = json.loads(line)
            if len(self._waiting) >= QUEUE:
                self._answer(job["id"], BUSY)
            else:
                self._waiting.append(job)
        return bool(data)

    def _fork(self) -> _Fork:
        hear, tell = os.pipe()
        take, give = os.pipe()
        worker = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                _die_with(worker)
                self._connection.close()
                spares = [end for fork in self._spares for end in (fork.hear, fork.give)]
                for end in (hear, give, *self._forks, *spares):  # a spare reads its job until no writer is left
                    os.close(end)
                with open(take, "rb") as pipe:
                    job = json.load(pipe)
                _try_out(GrammarSpec(job["kind"], job["source"]), self._tokenizer, tell)
            finally:
                os._exit(0)
        os.close(tell)
        os.close(take)
        return _Fork(pid, hear, give)

    def _give(self, job: dict[str, Any]) -> None:
        is_spare = bool(self._spares)
        fork = self._spares.pop() if is_spare else self._fork()
        try:
            with open(fork.give, "wb") as pipe:
                pipe.write(json.dumps(job).encode())
        except BrokenPipeError:
            if is_spare:  # somebody ended it, which says nothing about the grammar
                os.close(fork.hear)
                os.waitpid(fork.pid, 0)
                self._give(job)
                return
        fork.job, fork.started = job["id"], time.monotonic()
        self._forks[fork.hear] = fork

    def _hear(self, pipe: int) -> None:
        fork = self._forks[pipe]
        data = os.read(pipe, 65536)
        if data:
            fork.heard += data
            return
        os.close(pipe)
        del self._forks[pipe]
        _, status, used = os.wait4(fork.pid, 0)
        verdict = fork.verdict
        if verdict is None:
            verdict = json.loads(fork.heard) if fork.heard else _why(status, used.ru_utime + used.ru_stime)
        self._answer(fork.job, verdict)

    def _end_slow(self) -> None:
        """Let `SLOW_FORKS` slow ones run to their limits; end the others for the sake of the jobs that wait."""
        now = time.monotonic()
        slow = sum(fork.slow for fork in self._forks.values())
        for fork in self._forks.values():
            age = now - fork.started
            if age > WALL_SECONDS:
                fork.verdict = fork.verdict or SLOW
            elif age > SLOW_AFTER and not fork.slow:
                fork.slow, slow = True, slow + 1
                if slow > SLOW_FORKS:
                    fork.verdict = BUSY
            if fork.verdict is not None:
                os.kill(fork.pid, signal.SIGKILL)

    def _answer(self, job: str, verdict: str | None) -> None:
        self._connection.sendall(json.dumps({"id": job, "verdict": verdict}).encode() + b"\n")


def _die_with(parent: int) -> None:
    """End this process when its parent ends, even by SIGKILL: at low priority its own limits take long to reach."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _try_out(spec: GrammarSpec, tokenizer: Tokenizer, tell: int) -> None:
    """Runs in the fork, and writes the verdict to the pipe; a fork that dies without one has exceeded a limit."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    limit = _memory()[0] + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    verdict: list[str | None] = [_too_much_memory()]

    def work() -> None:
        before = _memory()[1]
        try:
            _walk(spec, tokenizer)
            verdict[0] = None if _memory()[1] - before <= GROWTH else _too_much_memory()
        except FulgurError as error:
            verdict[0] = f"{error.message}\n{error.hint or ''}"
        except MemoryError:
            pass
        except Exception as error:  # a lone surrogate, a nesting that Python itself refuses
            verdict[0] = f"The grammar cannot be used: {str(error)[:200]}"

    threading.stack_size(STACK)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(QUICK)
    if thread.is_alive():
        os.nice(_SLOW_NICE)
        thread.join()
    os.write(tell, json.dumps(verdict[0]).encode())


def _walk(spec: GrammarSpec, tokenizer: Tokenizer) -> None:
    """Compile, and take random steps that the grammar allows."""
    import numpy as np

    matcher = GrammarMatcher(Grammar.from_spec(spec), tokenizer)
    mask = np.zeros(tokenizer.vocab_size, np.uint8)
    choose = random.Random(0)
    for _ in range(STEPS):
        matcher.mask(mask)
        allowed = np.flatnonzero(mask)
        if not len(allowed) or matcher.is_done():
            return
        token = int(allowed[choose.randrange(len(allowed))])
        if token in tokenizer.eos_ids or not matcher.accept(token):
            return
        matcher.forced_tokens()


def _memory() -> tuple[int, int]:
    """Address space and resident bytes of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = file.read().split()
    size = os.sysconf("SC_PAGE_SIZE")
    return int(pages[0]) * size, int(pages[1]) * size


def _too_long() -> str:
    return f"The grammar takes more than {CPU_SECONDS} s to compile.\nMake the grammar simpler."


def _too_much_memory() -> str:
    return f"The grammar takes more than {MEMORY >> 20} MB to compile.\nMake the grammar simpler."


def _why(status: int, seconds: float) -> str:
    """Why a fork died without a verdict, after so many seconds of CPU time.

    Its own limit on time sends SIGXCPU, or SIGKILL a second later. A SIGKILL before comes from elsewhere, such as the
    kernel when memory runs out.
    """
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGXCPU or (number == signal.SIGKILL and seconds >= CPU_SECONDS):
        return _too_long()
    if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP):
        return KILLED
    if number == signal.SIGSEGV:
        return "The grammar is nested too deeply.\nMake the grammar flatter."
    return _too_much_memory()


def main(fd: int, model: Path) -> int:
    from fulgur.engine.load import open_tokenizer

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to whoever started us
    os.nice(_NICE)
    tokenizer = open_tokenizer(model)
    with contextlib.suppress(FulgurError):  # a model without an end token takes no grammar: every check will say so
        _walk(GrammarSpec("json_schema", '{"type": "object"}'), tokenizer)  # builds here what is built only once
    gc.collect()
    gc.freeze()
    with contextlib.suppress(ConnectionError):
        _Worker(socket.socket(fileno=fd), tokenizer).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
