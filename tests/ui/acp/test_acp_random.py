"""Random prompts, cancels, steers, questions and lost connections: nothing hangs, nothing is lost or doubled.

`FULGUR_ACP_SEQUENCES=500` runs so many; `FULGUR_ACP_SEED=N` repeats one.
"""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from acp.exceptions import RequestError
from acp_world import Editor, editing
from agent_world import call, say, serving
from host_world import hosting, opening

from fulgur.agent.host.serve import Listener
from fulgur.agent.session.history import item_text

SEQUENCES = int(os.environ.get("FULGUR_ACP_SEQUENCES", "2"))
SEEDS = [int(os.environ["FULGUR_ACP_SEED"])] if "FULGUR_ACP_SEED" in os.environ else list(range(SEQUENCES))
_STEPS = 12
_CHANGES = 6


def replies() -> list[dict[str, Any]]:
    adds = [f"*** Begin Patch\n*** Add File: sub/c{n}.txt\n+{n}\n*** End Patch" for n in range(_CHANGES)]
    changes = [call("apply_patch", {"patch": add}, match=f"change {n}", times=1) for n, add in enumerate(adds)]
    return [*changes, say("word " * 60)]


async def cut(listener: Listener) -> None:
    for socket in [*listener._sockets]:
        await socket.close()


async def sequence(
    seed: int, editor: Editor, listener: Listener, session: str
) -> tuple[list[str], list[str], list[str]]:
    """Do random things; the texts that a turn took to its end, all that were sent, and those that were cancelled."""
    chance = random.Random(seed)
    sent: list[tuple[str, asyncio.Task[Any]]] = []
    steered: list[str] = []

    def answer(asked: Any) -> Any:
        async def later() -> Any:
            await asyncio.sleep(chance.choice([0, 0.01, 0.05]))
            return chance.choice(["allow", "allow", "deny", "always", None])

        return later()

    editor.answer = answer
    for step in range(_STEPS):
        text = chance.choice([f"say {seed}.{step}", f"change {chance.randrange(_CHANGES)} at {seed}.{step}"])
        match chance.choice(["prompt", "prompt", "prompt", "queue", "steer", "cancel", "cut", "wait"]):
            case "prompt":
                sent.append((text, asyncio.create_task(editor.say(session, text))))
            case "queue":
                sent.append((text, asyncio.create_task(editor.say(session, f"/queue {text}"))))
            case "steer":
                given = {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
                await editor.connection.ext_method("session/steering", given)
                steered.append(text)
            case "cancel":
                await editor.connection.cancel(session_id=session)
            case "cut":
                await cut(listener)
            case "wait":
                await asyncio.sleep(chance.choice([0, 0.02, 0.1]))
    done: list[str] = []
    cancelled: list[str] = []
    while not all(task.done() for _, task in sent):
        await asyncio.wait([task for _, task in sent], timeout=0.2)
        if not listener.host.sessions[session].agent.running:
            await editor.connection.cancel(session_id=session)  # what a stop left in the queue waits for no turn
    for text, task in sent:
        try:
            (done if task.result().stop_reason == "end_turn" else cancelled).append(text)
        except RequestError:
            continue
    return done, [text for text, _ in sent] + steered, cancelled


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_sequences(workspace: Path, seed: int) -> None:
    async with serving(replies(), rate=2000) as server, hosting() as listener:
        async with editing(opening(server, workspace, "approval_policy=untrusted")["overrides"]) as editor:
            session = str((await editor.connection.new_session(cwd=str(workspace), mcp_servers=[])).session_id)
            async with asyncio.timeout(60):
                done, sent, cancelled = await sequence(seed, editor, listener, session)
                await listener.host.sessions[session].agent.wait()
            state = listener.host.sessions[session].agent.state
            said = [item_text(item) for item in state.history.everything() if item.get("role") == "user"]
            kept = Counter([*said, *state.queued])
            # What ended was taken once; what was sent was taken once or waits in the queue, and never twice. What was
            # cancelled before its turn began is gone.
            assert [text for text in done if kept[text] != 1] == []
            assert [text for text in sent if kept[text] > 1] == []
            assert [text for text in sent if kept[text] == 0 and text not in cancelled] == []
            # The session still works, and the editor saw what the file has.
            assert (await asyncio.wait_for(editor.say(session, "the end"), 30)).stop_reason == "end_turn"
