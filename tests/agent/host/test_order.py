"""What is sent in one go is done in its order: a stop that follows its prompt at once is not lost."""

import asyncio
from pathlib import Path

import pytest
from agent_world import say, serving
from host_world import Seen, client_of, hosting, opening

from fulgur.client.host import HostClient
from fulgur.client.rpc import Peer
from fulgur.errors import FulgurError
from fulgur.protocol import rpc
from fulgur.protocol.agent import MessageDelta, TurnDone, TurnStopped
from fulgur.protocol.host import HostInfo
from fulgur.workspace import folders


async def test_a_stop_right_behind_its_prompt_stops_it(workspace: Path) -> None:
    async with serving([say("word " * 200)], rate=2000) as server, hosting(), client_of() as client:
        seen = Seen(await client.attach("session.open", **opening(server, workspace)))
        name = seen.attached.session
        await asyncio.gather(client.submit(name, "go"), client.tell("turn.stop", session=name))
        assert isinstance(await seen.ended(), TurnStopped)
        assert "".join(event.text for event in seen.of(MessageDelta)).count("word") < 200
        # Nothing of it is left for the next turn.
        since = len(seen.events)
        await client.submit(name, "again")
        assert isinstance(await seen.ended(since), TurnDone)


async def test_a_stop_while_a_turn_ends_keeps_what_is_queued(workspace: Path) -> None:
    """Else the next turn began behind the back of whoever closes the session, and asked nobody."""
    async with serving([say("Done.")]) as server, hosting() as listener, client_of() as client:
        seen = Seen(await client.attach("session.open", **opening(server, workspace)))
        agent = listener.host.sessions[seen.attached.session].agent
        here, really = asyncio.get_running_loop(), agent.state.end_turn

        async def late() -> None:
            agent.queue("later")
            agent.stop()

        def end(how: str, problem: str) -> None:
            asyncio.run_coroutine_threadsafe(late(), here).result()
            really(how, problem)

        agent.state.end_turn = end  # type: ignore[method-assign]
        await client.submit(seen.attached.session, "go")
        assert isinstance(await seen.ended(), TurnDone)
        await agent.wait()
        assert list(agent.state.queued) == ["later"]


async def test_a_client_whose_host_went_away_finds_the_next_one(workspace: Path) -> None:
    async with serving([say("Here.")]) as server:
        async with hosting():
            client = await HostClient(folders.home(), starts=False).open()
        (folders.home() / "host.json").unlink()
        with pytest.raises(FulgurError, match="no agent host is running"):
            await client.call("host.info", HostInfo)
        async with hosting():
            seen = Seen(await client.attach("session.open", **opening(server, workspace)))
            await client.submit(seen.attached.session, "go")
            assert isinstance(await seen.ended(), TurnDone)
            await client.close()


async def test_a_notification_comes_after_the_requests_before_it() -> None:
    came: list[str] = []
    forever = asyncio.Event()

    async def handle(method: str, params: object) -> None:
        came.append(method)
        if method == "prompt":
            await forever.wait()

    async def send(data: bytes) -> None:
        return

    async def messages():  # type: ignore[no-untyped-def]
        yield rpc.request(1, "prompt", {})
        yield rpc.notification("cancel", {})

    await Peer(send, handle).run(messages())
    assert came == ["prompt", "cancel"]
