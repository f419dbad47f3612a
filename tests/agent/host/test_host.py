"""Sessions in the host, seen over real sockets by clients that share, lose and find them again."""

import asyncio
import json
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from agent_world import call, needs_sandbox, say, serving
from host_world import Seen, client_of, handshake, hosting, opening
from waiting import PATIENCE

from fulgur.agent.host.feed import Feed
from fulgur.agent.host.link import HostLink
from fulgur.agent.host.remote import RemoteAgent
from fulgur.agent.session.log import SessionLog
from fulgur.client.host import HostClient
from fulgur.client.rpc import ConnectionLost
from fulgur.config.settings import load_settings
from fulgur.errors import FulgurError
from fulgur.protocol.agent import (
    ApprovalAsked,
    MemberFinished,
    MessageDelta,
    QueueChanged,
    SessionStarted,
    TurnDone,
    TurnStarted,
    TurnSteered,
)
from fulgur.protocol.host import Attached, FileChange, HostInfo, SessionInfo
from fulgur.protocol.session import Status, TranscriptEntry
from fulgur.ui.tui import app
from fulgur.workspace import folders


def text_of(seen: Seen) -> str:
    return "".join(event.text for event in seen.of(MessageDelta))


async def test_two_clients_share_a_session_and_either_steers(workspace: Path) -> None:
    replies = [say("one two three four five six seven eight nine ten. " * 20, match="count"), say("Stopped counting.")]
    async with serving(replies, rate=200) as server, hosting(), client_of() as first, client_of() as second:
        here = Seen(await first.attach("session.open", **opening(server, workspace)))
        name = here.attached.session
        there = Seen(await second.attach(session=name))
        assert (await first.submit(name, "count")).outcome == "started"
        await there.until(MessageDelta)
        assert (await second.submit(name, "enough")).outcome == "steered"
        await asyncio.gather(here.ended(), there.ended())
        assert [e.text for e in here.of(TurnSteered)] == ["enough"] == [e.text for e in there.of(TurnSteered)]
        assert text_of(here) == text_of(there) and text_of(here).endswith("Stopped counting.")
        [info] = await first.call("session.list", list[SessionInfo], workspace=str(workspace))
        assert (info.session, info.clients, info.live, info.title) == (name, 2, True, "count")


async def test_a_queued_prompt_is_taken_back_for_every_client(workspace: Path) -> None:
    async with serving([say("word " * 400, match="first"), say("ok")], rate=200) as server, hosting():
        async with client_of() as client, client_of() as other:
            seen = Seen(await client.attach("session.open", **opening(server, workspace)))
            name = seen.attached.session
            await client.submit(name, "first")
            await seen.until(MessageDelta)
            await client.submit(name, "second", "queue")
            await client.submit(name, "third", "queue")
            joined = Seen(await other.attach(session=name))
            assert await other.call("turn.withdraw", bool, session=name, text="second")
            assert not await other.call("turn.withdraw", bool, session=name, text="second")
            for one in (seen, joined):
                await one.until(lambda event: isinstance(event, QueueChanged) and event.prompts == ("third",))
                assert one.of(QueueChanged)[-1].prompts == ("third",)
            await client.tell("turn.stop", session=name)
            await seen.ended()
            await client.submit(name, "go on")
            await seen.until(lambda event: isinstance(event, TurnDone) and event.turn == 3)
            assert [event.text for event in seen.of(TurnStarted)] == ["first", "go on", "third"]


async def test_a_client_that_joins_or_returns_in_mid_turn_misses_nothing(workspace: Path) -> None:
    replies = [say("Before.", times=1), say("word " * 300)]
    async with serving(replies, rate=400) as server, hosting() as listener, client_of() as client:
        seen = Seen(await client.attach("session.open", **opening(server, workspace)))
        name = seen.attached.session
        await client.submit(name, "first")
        await seen.ended()
        since = len(seen.events)
        await client.submit(name, "second")
        await seen.until(MessageDelta, since)
        async with client_of() as late:
            joined = Seen(await late.attach(session=name))
            assert [entry.text for entry in joined.attached.transcript] == ["first", "Before."]
            for socket in [*listener._sockets]:  # every connection is cut; the clients find their way back
                await socket.close()
            await asyncio.gather(joined.ended(), seen.ended(since))
            assert text_of(joined) == "word " * 300
            assert text_of(seen) == "Before." + "word " * 300
            assert not joined.of(Attached) and not seen.of(Attached)


async def test_the_board_says_who_needs_somebody_and_numbers_outlive_the_host(workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\n")
    replies = [call("edit", {"path": "a.txt", "old": "one", "new": "two"}, times=1), say("Done.")]
    async with serving(replies) as server, hosting() as listener, client_of() as client:
        header = {"Authorization": f"Bearer {listener.token}"}
        async with aiohttp.ClientSession() as raw, raw.ws_connect(listener.url, headers=header) as socket:
            await socket.send_json({"id": 1, "method": "board.follow"})

            async def board(fits: Callable[[list[Any]], bool]) -> list[Any]:
                while True:
                    told = await socket.receive_json()
                    if told.get("method") == "board" and fits(told["params"]["sessions"]):
                        return told["params"]["sessions"]

            assert await board(lambda live: not live) == []
            seen = Seen(await client.attach("session.open", **opening(server, workspace)))
            name = seen.attached.session
            await client.submit(name, "edit")
            [info] = await board(lambda live: bool(live) and live[0].get("unjudged", 0) == 1)
            assert info["session"] == name and info["title"] == "edit"
            await seen.ended()
            await client.tell("changes.accept", session=name)
            await board(lambda live: not live[0].get("unjudged", 0))
        await client.tell("session.close", session=name)
        again, _ = await client.attach("session.open", **opening(server, workspace, session=name))
        assert len(again.usage) == 2 and all(usage.output_tokens for usage in again.usage)


async def test_a_screen_gets_the_events_of_a_frame_together(workspace: Path) -> None:
    async with serving([say("word " * 400)], rate=4000) as server, hosting() as listener, client_of() as client:
        attached, _ = await client.attach("session.open", **opening(server, workspace))
        name, header = attached.session, {"Authorization": f"Bearer {listener.token}"}
        async with aiohttp.ClientSession() as raw, raw.ws_connect(listener.url, headers=header) as socket:
            params = {"session": name, "frame_ms": 20}
            await socket.send_json({"id": 1, "method": "session.attach", "params": params})
            seq = (await socket.receive_json())["result"]["seq"]
            await client.submit(name, "go")
            told: list[Any] = []
            messages = 0
            while not told or told[-1]["type"] != "turn.done":
                message = await socket.receive_json()
                assert message["method"] == "events" and message["params"]["seq"] == seq + len(told) + 1
                told += message["params"]["events"]
                messages += 1
        assert "".join(event["text"] for event in told if event["type"] == "text.delta") == "word " * 400
        assert messages < len(told) / 2


async def test_who_joins_before_the_first_event_of_a_turn_sees_it_once(workspace: Path) -> None:
    async with serving([say("Hello.")]) as server, hosting() as listener, client_of() as client:
        attached, _ = await client.attach("session.open", **opening(server, workspace))
        session = listener.host.sessions[attached.session]
        held: list[Any] = []
        session.emit = held.append  # type: ignore[method-assign]  # the agent is ahead of what readers were told
        await client.submit(attached.session, "hi")
        while not any(isinstance(event, TurnDone) for event in held):
            await asyncio.sleep(0.01)
        assert session.attached().transcript == []  # its events follow
        del session.emit
        for event in held:
            session.emit(event)
        assert [entry.text for entry in session.attached().transcript] == ["hi", "Hello."]


async def test_a_prompt_sent_again_after_a_lost_connection_is_taken_once(workspace: Path) -> None:
    async with serving([say("Hello.")]) as server, hosting(), client_of() as client:
        seen = Seen(await client.attach("session.open", **opening(server, workspace)))
        name = seen.attached.session
        for _ in range(3):
            await client.tell("turn.submit", session=name, text="hi", message="m1")
        await seen.ended()
        await client.submit(name, "again")
        await seen.ended(len(seen.events))
        assert [e.text for e in seen.of(TurnStarted)] == ["hi", "again"]
        with pytest.raises(FulgurError, match="turn 7 is no longer running"):
            await client.submit(name, "late", expected_turn=7)


async def test_missed_events_are_replaced_by_the_session(workspace: Path) -> None:
    async with serving([say("word " * 400)]) as server, hosting() as listener, client_of() as client:
        attached, _ = await client.attach("session.open", **opening(server, workspace))
        session = listener.host.sessions[attached.session]
        session.feed._most = 2_000
        await client.submit(attached.session, "go")
        while not session.agent.state.turns or session.agent.running:
            await asyncio.sleep(0.01)
        async with client_of() as other:
            late = await other.attach(session=attached.session, after=1, epoch=attached.epoch)
            assert late[0].seq > 1 and [e.kind for e in late[0].transcript] == ["user", "assistant"]
            assert late[0].transcript[1].text == "word " * 400


async def test_changes_are_accepted_and_rejected_by_hunk_and_by_file(workspace: Path) -> None:
    lines = [f"line {n}\n" for n in range(20)]
    (workspace / "a.txt").write_text("".join(lines))
    latin = "caf\u00e9 one\n".encode("latin-1")
    (workspace / "b.txt").write_bytes(latin)
    replies = [
        call("edit", {"path": "a.txt", "old": "line 2\n", "new": "LINE 2\n"}, times=1),
        call("edit", {"path": "a.txt", "old": "line 15\n", "new": "LINE 15\n"}, times=1),
        call("edit", {"path": "b.txt", "old": "one", "new": "two"}, times=1),
        call("apply_patch", {"patch": "*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch"}, times=1),
        say("Done."),
    ]
    async with serving(replies) as server, hosting() as listener, client_of() as client:
        seen = Seen(await client.attach("session.open", **opening(server, workspace)))
        name = seen.attached.session
        await client.submit(name, "edit")
        await seen.ended()
        first, second, third = await client.call("changes.list", list[FileChange], session=name)
        assert (first.path, second.path, third.path, third.kind) == ("a.txt", "b.txt", "new.txt", "added")
        assert [(h.old, h.new) for h in first.hunks] == [(["line 2\n"], ["LINE 2\n"]), (["line 15\n"], ["LINE 15\n"])]
        await client.tell("changes.accept", session=name, path="a.txt", hunk=first.hunks[0].id)
        [left] = [c for c in await client.call("changes.list", list[FileChange], session=name) if c.path == "a.txt"]
        assert [h.new for h in left.hunks] == [["LINE 15\n"]]
        # The person writes elsewhere in the file: that is theirs, and no hunk.
        text = (workspace / "a.txt").read_text().replace("line 9\n", "mine\n")
        (workspace / "a.txt").write_text(text)
        [left] = [c for c in await client.call("changes.list", list[FileChange], session=name) if c.path == "a.txt"]
        assert [h.new for h in left.hunks] == [["LINE 15\n"]]
        await client.tell("changes.reject", session=name, path="a.txt", hunk=left.hunks[0].id)
        expected = "".join(lines).replace("line 2\n", "LINE 2\n").replace("line 9\n", "mine\n")
        assert (workspace / "a.txt").read_text() == expected
        with pytest.raises(FulgurError, match="changed since this hunk was shown"):
            await client.tell("changes.reject", session=name, path="b.txt", hunk="nothing")
        await client.tell("changes.reject", session=name)
        assert (workspace / "b.txt").read_bytes() == latin and not (workspace / "new.txt").exists()
        assert await client.call("changes.list", list[FileChange], session=name) == []
        # The model is told, and a host that opens the session anew remembers what was judged.
        await client.submit(name, "go on")
        await seen.ended(len(seen.events))
        said = json.dumps(listener.host.sessions[name].agent.state.history.visible())
        assert "took back" in said and "new.txt" in said
        await client.tell("session.close", session=name)
        again = await client.attach("session.open", **opening(server, workspace, session=name))
        assert again[0].status.turns == 2
        assert await client.call("changes.list", list[FileChange], session=name) == []


async def test_a_question_waits_for_whoever_answers(workspace: Path) -> None:
    replies = [call("shell", {"command": "touch sub/x"}, times=1), say("Done.")]
    async with serving(replies) as server, hosting(), client_of() as first:
        untrusted = opening(server, workspace, "approval_policy=untrusted")
        seen = Seen(await first.attach("session.open", **untrusted))
        name = seen.attached.session
        await first.submit(name, "touch")
        asked = await seen.until(ApprovalAsked)
        async with client_of() as second:
            other = Seen(await second.attach(session=name))
            assert (await other.until(ApprovalAsked)).approval_id == asked.approval_id
            [info] = await second.call("session.list", list[SessionInfo])
            assert info.waiting == 1
            await second.tell("approval.answer", session=name, approval=asked.approval_id, decision="deny")
        await seen.ended()
        assert not (workspace / "sub" / "x").exists()


async def test_only_the_token_and_the_own_origin_get_in(home: Path) -> None:
    async with hosting() as listener:
        token = {"Authorization": f"Bearer {listener.token}"}
        own = f"http://127.0.0.1:{listener.port}"
        assert await handshake(listener, token) == 101
        assert await handshake(listener, {**token, "Origin": own}) == 101
        assert (
            await handshake(listener, {"Sec-WebSocket-Protocol": f"fulgur.host, fulgur.token.{listener.token}"}) == 101
        )
        assert await handshake(listener, {}) == 403
        assert await handshake(listener, {"Authorization": "Bearer wrong"}) == 403
        assert await handshake(listener, {**token, "Origin": "http://evil.example"}) == 403
        assert await handshake(listener, {**token, "Origin": "null"}) == 403
        assert await handshake(listener, {**token, "Origin": f"http://127.0.0.1:{listener.port + 1}"}) == 403
        assert await handshake(listener, {**token, "Host": "evil.example"}) == 403
        assert await handshake(listener, {**token, "Host": f"evil.example:{listener.port}"}) == 403
        note = folders.home() / "host.json"
        assert stat.S_IMODE(note.stat().st_mode) == 0o600


async def test_bad_requests_get_errors_and_the_connection_lives(home: Path) -> None:
    async with hosting() as listener, client_of() as client, aiohttp.ClientSession() as raw:
        headers = {"Authorization": f"Bearer {listener.token}"}
        async with raw.ws_connect(listener.url, headers=headers) as socket:
            for text in ("{", "[]", "1", '{"id": 1}', '{"id":2,"method":"nothing"}', '{"id":3,"method":"turn.stop"}'):
                await socket.send_str(text)
                answer = json.loads((await socket.receive()).data) if text != '{"id": 1}' else {"error": True}
                assert answer["error"]
            for params in ("null", '{"session": "../../etc/passwd"}', '{"session": 3}', '{"session": ""}'):
                await socket.send_str(f'{{"id":9,"method":"session.attach","params":{params}}}')
                assert json.loads((await socket.receive()).data)["error"]["message"]
        with pytest.raises(FulgurError, match="not an absolute path"):
            await client.attach("session.open", workspace="relative")


@needs_sandbox
async def test_sessions_fork_close_and_are_deleted(workspace: Path) -> None:
    async with serving([say("Hi.")]) as server, hosting(), client_of() as client:
        given = opening(server, workspace)
        seen = Seen(await client.attach("session.open", **given))
        name = seen.attached.session
        await client.submit(name, "hello")
        await seen.ended()
        copy, _ = await client.attach("session.open", **{**given, "fork": name})
        assert copy.session != name and [e.text for e in copy.transcript] == ["hello", "Hi."]
        await client.tell("session.close", session=name)
        await seen._task  # its events have ended
        listed = {info.session: info.live for info in await client.call("session.list", list[SessionInfo])}
        assert listed == {name: False, copy.session: True}
        await client.tell("session.delete", session=name)
        assert [i.session for i in await client.call("session.list", list[SessionInfo])] == [copy.session]


async def test_subagents_stand_under_their_session_and_are_only_read(home: Path, workspace: Path) -> None:
    def stored(prompt: str, **more: object) -> SessionLog:
        log = SessionLog.create(home, workspace, "m", **more)
        log.append("turn", turn=1, text=prompt)
        return log

    parent, member, at_work = stored("go"), stored("go", subagent=True), stored("go", subagent=True)
    ended = MemberFinished(
        member="variant-1", role="", model="m", models=("m",), how="done", text="", session_id=member.id
    )
    parent.append("member", **msgspec.structs.asdict(ended))
    before = at_work.path.read_bytes()
    async with hosting(), client_of() as client:
        listed = await client.call("session.list", list[SessionInfo])
        assert {(info.session, info.title, info.parent) for info in listed} == {
            (parent.id, "go", ""),
            (member.id, "variant-1", parent.id),
        }
        for log in (member, at_work):
            said = await client.call("session.read", list[TranscriptEntry], session=log.id)
            assert [entry.text for entry in said] == ["go"]
            with pytest.raises(FulgurError, match="is read-only"):
                await client.attach(session=log.id)
    assert at_work.path.read_bytes() == before  # somebody else writes it


async def test_a_late_word_of_a_lost_connection_does_not_hold_up_the_new_one(home: Path) -> None:
    async with hosting(), client_of() as client:
        real = client._peer

        class Lost:
            async def request(self, *_: object) -> None:
                client._peer = real  # it is mended before this request learns that it was lost
                raise ConnectionLost("gone")

        client._peer = Lost()  # type: ignore[assignment]
        told = await asyncio.wait_for(client.call("host.info", HostInfo), PATIENCE)
        assert told.clients == 0


async def test_a_host_is_found_or_none_is(home: Path) -> None:
    with pytest.raises(FulgurError, match="no agent host is running"):
        await HostClient(home, starts=False).open()


async def test_a_client_that_does_not_read_costs_no_memory_and_is_resynchronised(workspace: Path) -> None:
    async with serving([say("word " * 2000)]) as server, hosting() as listener, client_of() as client:
        seen = Seen(await client.attach("session.open", **opening(server, workspace)))
        session = listener.host.sessions[seen.attached.session]
        session.feed = Feed(most_bytes=4_000)
        reads, sent = asyncio.Event(), list[bytes]()

        async def send(data: bytes) -> None:
            sent.append(data)
            await reads.wait()

        slow = HostLink(listener.host, send)
        params = json.dumps({"session": session.id}).encode()
        await slow._handle("session.attach", msgspec.Raw(params))
        await client.submit(session.id, "go")
        while not session.agent.state.turns or session.agent.running:
            await asyncio.sleep(0.01)
        assert len(sent) == 1 and session.feed._size < 40_000  # the last event alone has the whole answer
        reads.set()
        while b'"turn.done"' not in sent[-1] and b'"resync"' not in sent[-1]:
            await asyncio.sleep(0.01)
        told = next(json.loads(data)["params"] for data in sent if b'"method":"resync"' in data)
        assert [entry["kind"] for entry in told["transcript"]] == ["user", "assistant"]
        assert told["transcript"][1]["text"] == "word " * 2000 and told["seq"] == session.feed.last
        await slow.close()


async def test_the_terminals_agent_shows_and_steers_a_session_of_the_host(workspace: Path) -> None:
    replies = [say("Hi.", times=1), say("tick " * 400, match="count"), say("Stopped.")]
    async with serving(replies, rate=300) as server, hosting(), client_of() as client:
        given = opening(server, workspace)
        seen = Seen(await client.attach("session.open", **given))
        name = seen.attached.session
        await client.submit(name, "hello")
        await seen.ended()
        settings = load_settings(workspace, overrides=given["overrides"])
        remote = await RemoteAgent.open(settings, name[:-1])
        try:
            told = Seen((seen.attached, remote.events()))
            assert (await told.until(SessionStarted)).resumed_turns == 1
            assert [entry.text for entry in remote.transcript()] == ["hello", "Hi."]
            remote.submit("count")
            await told.until(MessageDelta)
            assert remote.running
            remote.steer("enough")
            await told.ended()
            assert told.of(TurnSteered)[0].text == "enough" and text_of(told).endswith("Stopped.")
            assert "m" in [offer.name for offer in await remote.offers()]
            assert "m" in await remote.models() and await asyncio.to_thread(remote.diff) == ""
            copy = await remote.fork()
            assert copy != name and remote.status().session_id == copy
        finally:
            await remote.close()
        assert (await client.call("session.status", Status, session=name)).turns == 2  # it went on without the terminal


def test_the_terminals_agent_has_everything_that_the_terminal_calls() -> None:
    """What `ui/tui` calls on an agent, read from its source."""
    source = Path(app.__file__).parent
    called = {name for file in source.glob("*.py") for name in re.findall(r"\bagent\.(\w+)\(", file.read_text())}
    assert called and [name for name in sorted(called) if not hasattr(RemoteAgent, name)] == []
