"""A turn that the program works on itself, such as a task list: saved, undone and stopped like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fulgur.agent.session.changes import Changes
from fulgur.agent.session.history import message
from fulgur.agent.session.state import SessionState
from fulgur.errors import FulgurError
from fulgur.protocol.agent import AgentEvent, MessageDelta, TurnDone, TurnFailed, TurnStarted, TurnStopped, Warned


async def program_turn(
    state: SessionState,
    changes: Changes,
    emit: Callable[[AgentEvent], None],
    text: str,
    work: Callable[[], Awaitable[str]],
) -> bool:
    """Run `work` inside a turn; the string it returns is the turn's message. True when it finished."""
    turn = state.begin_turn(text)
    emit(TurnStarted(turn=turn, text=text, way="tools", reason=""))
    said, how, problem = "", "done", FulgurError("")
    try:
        for uncovered in await changes.before():
            emit(Warned(message=f"not covered by undo: {uncovered}"))
        said = await work()
    except asyncio.CancelledError:
        how = "stopped"
    except FulgurError as error:
        how, problem = "failed", error
    except Exception as error:
        how, problem = "failed", FulgurError(f"unexpected {type(error).__name__}: {error}")
    await changes.after()
    if said:
        emit(MessageDelta(turn=turn, text=said))
        state.add_items([message("assistant", said)])
    await asyncio.to_thread(state.end_turn, how, problem.message)
    match how:
        case "done":
            emit(TurnDone(turn=turn, text=said))
        case "stopped":
            emit(TurnStopped(turn=turn, text=said))
        case _:
            emit(TurnFailed(turn=turn, message=problem.message, hint=problem.hint or "", text=said))
    return how == "done"
