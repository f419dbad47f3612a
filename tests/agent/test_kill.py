"""Two hundred kill -9 at random moments: what was shown as done is there after resume, and no patch is half applied."""

import asyncio
import os
import random
import select
import signal
from pathlib import Path

from agent_world import agent_on, serving

from fulgur.agent.session.log import SessionLog, find_session, summaries
from fulgur.agent.session.state import SessionState
from fulgur.agent.workbench import Workbench
from fulgur.config.settings import load_settings
from fulgur.protocol.agent import MessageDelta, TurnDone

KILLS = 200
PER_SESSION = 20


def patch(number: int) -> str:
    """Both files get the same new content, so a patch that was half applied shows."""
    files = "".join(f"*** Add File: {name}\n+{number}\n" for name in ("a.txt", "b.txt"))
    return f"*** Begin Patch\n{files}*** End Patch"


async def work(workspace: Path, resume: bool, shown: int) -> None:
    """Turn after turn until killed; each end that a person would have seen is written to `shown`."""
    replies = [
        {
            "after": "message",
            "match": f"turn {number}$",
            "steps": [{"text": "Working."}, {"call": "apply_patch", "arguments": {"patch": patch(number)}}],
        }
        for number in range(400)
    ]
    replies.append(
        {"after": "function_call_output", "steps": [{"text": "Done with it, and this is said at some length."}]}
    )
    options = {"session": "last"} if resume else {}
    async with serving(replies, rate=4000) as server:
        async with agent_on(server, workspace, "features.guards=false", **options) as watch:
            os.write(shown, b"ready\n")
            while True:
                number = len(watch.agent.state.turns)
                watch.agent.submit(f"turn {number}")
                since = len(watch.seen)
                await watch.until(lambda e: isinstance(e, MessageDelta), since)
                end = await watch.until(lambda e: isinstance(e, TurnDone), since)
                os.write(shown, f"done {number} {end.text}\n".encode())
                await watch.agent.wait()


def run_and_kill(workspace: Path, resume: bool, delay: float) -> list[str]:
    """Fork a session, kill it after `delay`; the lines it had shown."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            asyncio.run(work(workspace, resume, writer))
        finally:
            os._exit(1)
    os.close(writer)
    data = b""
    while not data.endswith(b"ready\n"):
        block = os.read(reader, 4096)
        assert block, "the session did not start"
        data += block
    select.select([], [], [], delay)
    os.kill(pid, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    while block := os.read(reader, 65536):
        data += block
    os.close(reader)
    return [line for line in data.decode().splitlines() if line.startswith("done")]


def test_two_hundred_kills(workspace: Path, home: Path) -> None:
    moments = random.Random(20261115)
    finished = cut = 0
    promised: dict[int, str] = {}
    window = 0.09
    for kill in range(KILLS):
        resume = kill % PER_SESSION != 0 and any(s.turns for s in summaries(home, workspace))
        if not resume:
            promised = {}
        lines = run_and_kill(workspace, resume, moments.uniform(0.0, window))
        window *= 0.9 if lines else 1.2  # however fast the machine is, some kills find a turn done and some do not
        for line in lines:
            _, number, text = line.split(" ", 2)
            promised[int(number)] = text
            finished += 1
        if not any(s.turns for s in summaries(home, workspace)):
            continue
        path = find_session(home, "last", workspace)
        state = SessionState.load(SessionLog(path))
        cut += state.interrupted
        for number, text in promised.items():
            assert state.turns[number].text == f"turn {number}"
            assert state.turns[number].ended == "done", f"kill {kill}: turn {number} was shown as done"
            said = [entry.text for entry in state.transcript if entry.turn == number + 1 and entry.kind == "assistant"]
            assert said[-1] == text
        assert state.history.open_calls() == []
        bench = Workbench.make(load_settings(workspace), path.stem)
        bench.files.recover()
        contents = {name: (workspace / name).read_text() for name in ("a.txt", "b.txt") if (workspace / name).exists()}
        assert len(set(contents.values())) <= 1 and len(contents) in (0, 2), f"kill {kill}: half a patch: {contents}"
        state.log.close()
        bench.close()
    # The moments were spread over whole turns and cut ones, or the test would show nothing.
    assert finished > 30 and cut > 30, (finished, cut)
