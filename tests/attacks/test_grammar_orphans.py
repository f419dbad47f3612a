"""Nothing that tries out grammars outlives its server, and no grammar waits for another one's process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until, wait_until

from fulgur.backends.compile import BUSY, KILLED, SLOW, SPARES, GrammarBusy, GrammarCompiler, _why, _Worker
from fulgur.bench.chat_model import write_chat_model
from fulgur.errors import FulgurError
from fulgur.text.grammar import GrammarSpec
from fulgur.text.tokenizer import Tokenizer
from tests.attacks.test_grammar_attacks import patterns


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model") / "random", d_model=64, n_layers=1)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def lives(pid: int) -> bool:
    """Whether there is such a process; one that only waits to be collected is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def test_forks_end_with_the_process_that_made_them(folder: Path) -> None:
    """A stopped fork stands for one that a busy machine gives no time: its own limits never end it."""
    compiler = GrammarCompiler(folder)
    await compiler.check(GrammarSpec("regex", "a"))
    assert compiler._process is not None
    worker = compiler._process.pid
    await until(lambda: len(children(worker)) >= SPARES)
    forks = children(worker)
    for fork in forks:
        os.kill(fork, signal.SIGSTOP)
    try:
        os.kill(worker, signal.SIGKILL)
        await until(lambda: not any(map(lives, forks)))
    finally:
        for fork in filter(lives, forks):
            os.kill(fork, signal.SIGKILL)
        await compiler.close()


async def test_a_server_that_goes_while_an_answer_is_on_its_way_leaves_nothing(folder: Path) -> None:
    """The answer cannot be sent any more, and that must not be the end of the tidying up."""
    compiler = GrammarCompiler(folder)
    await compiler.check(GrammarSpec("regex", "a"))
    assert compiler._process is not None and compiler._writer is not None
    worker = compiler._process.pid
    os.kill(worker, signal.SIGSTOP)
    hard = GrammarSpec("json_schema", json.dumps(patterns(22)))
    asked = [
        asyncio.create_task(compiler.check(spec))
        for spec in (hard, *(GrammarSpec("regex", f"b{n}") for n in range(70)))
    ]
    await until(lambda: len(compiler._asked) == len(asked))
    compiler._writer.transport.abort()
    processes = [worker, *children(worker)]
    os.kill(worker, signal.SIGCONT)
    await until(lambda: not any(map(lives, processes)))
    assert all(isinstance(end, GrammarBusy) for end in await asyncio.gather(*asked, return_exceptions=True))
    await compiler.close()


@pytest.fixture
def worker(folder: Path) -> Iterator[tuple[_Worker, socket.socket]]:
    """It, and the server's end of its socket."""
    ours, theirs = socket.socketpair()
    worker = _Worker(theirs, Tokenizer.from_folder(folder))
    yield worker, ours
    for fork in worker._spares:
        os.kill(fork.pid, signal.SIGKILL)
        os.waitpid(fork.pid, 0)
    ours.close()
    theirs.close()


def test_a_spare_holds_no_pipe_of_another(worker: tuple[_Worker, socket.socket]) -> None:
    """It would keep the other's job from being whole for as long as its own grammar takes."""
    forks = worker[0]
    for _ in range(2):
        forks._spares.append(forks._fork())
    first, second = forks._spares
    pipes = {f"pipe:[{os.fstat(end).st_ino}]" for end in (first.hear, first.give)}

    def held() -> set[str]:
        return {os.readlink(entry) for entry in Path(f"/proc/{second.pid}/fd").iterdir()}

    wait_until(lambda: not held() & pipes)


def test_a_spare_that_was_ended_costs_no_verdict(worker: tuple[_Worker, socket.socket]) -> None:
    forks, server = worker
    forks._spares += [forks._fork(), forks._fork()]
    for spare in forks._spares:
        os.kill(spare.pid, signal.SIGKILL)
    wait_until(lambda: not any(lives(spare.pid) for spare in forks._spares))
    forks._give({"id": "00", "kind": "regex", "source": "a"})
    while forks._forks:
        forks._hear(next(iter(forks._forks)))
    assert json.loads(server.recv(1000)) == {"id": "00", "verdict": None}


HARD = {"id": "00", "kind": "json_schema", "source": json.dumps(patterns(39))}


def verdict_of(worker: _Worker, server: socket.socket) -> str | None:
    while worker._forks:
        worker._hear(next(iter(worker._forks)))
    verdict: str | None = json.loads(server.recv(1000))["verdict"]
    return verdict


def test_a_kill_from_elsewhere_says_nothing_about_the_grammar(worker: tuple[_Worker, socket.socket]) -> None:
    """Such as that of the kernel when memory runs out."""
    forks, server = worker
    forks._give(HARD)
    [fork] = forks._forks.values()
    os.kill(fork.pid, signal.SIGKILL)
    assert verdict_of(forks, server) == KILLED


def test_a_fork_that_a_busy_machine_gives_no_time_says_nothing_either(worker: tuple[_Worker, socket.socket]) -> None:
    forks, server = worker
    forks._give(HARD)
    [fork] = forks._forks.values()
    fork.started -= 100
    forks._end_slow()
    assert verdict_of(forks, server) == SLOW


@pytest.mark.parametrize(
    ("number", "seconds", "why"),
    [
        (signal.SIGXCPU, 2.0, "takes more than 2 s"),
        (signal.SIGKILL, 3.0, "takes more than 2 s"),
        (signal.SIGKILL, 0.4, KILLED),
        (signal.SIGTERM, 0.4, KILLED),
        (signal.SIGSEGV, 0.4, "nested too deeply"),
        (signal.SIGABRT, 0.4, "takes more than 256 MB"),
    ],
)
def test_why_a_fork_died(number: signal.Signals, seconds: float, why: str) -> None:
    assert why in _why(int(number), seconds)  # the status of a process that a signal ended


@pytest.mark.parametrize("verdict", [BUSY, KILLED, SLOW])
async def test_what_depends_on_the_machine_is_an_error_that_is_not_kept(tmp_path: Path, verdict: str) -> None:
    compiler = GrammarCompiler(tmp_path)
    sent = asyncio.Event()

    async def send(key: bytes, spec: GrammarSpec) -> None:
        compiler._settle(key, verdict if not sent.is_set() else None)
        sent.set()

    compiler._ask = send  # type: ignore[method-assign]
    with pytest.raises(FulgurError) as caught:
        await compiler.check(GrammarSpec("regex", "a"))
    assert isinstance(caught.value, GrammarBusy) == (verdict != SLOW)
    await compiler.check(GrammarSpec("regex", "a"))  # asked again, and it passes


@pytest.mark.parametrize("lost", [OSError("no more processes"), asyncio.CancelledError()])
async def test_a_grammar_that_could_not_be_sent_can_be_asked_for_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lost: BaseException
) -> None:
    compiler = GrammarCompiler(folder)

    async def start() -> None:
        raise lost

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "start", start)
        with pytest.raises(type(lost)):
            await compiler.check(GrammarSpec("regex", "a"))
    try:
        await asyncio.wait_for(compiler.check(GrammarSpec("regex", "a")), 60)
    finally:
        await compiler.close()
