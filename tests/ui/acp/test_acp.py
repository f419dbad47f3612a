"""`fulgur acp` driven by the protocol's official client, on a real host and a scripted model."""

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from acp.exceptions import RequestError
from acp.schema import ClientCapabilities, FileSystemCapabilities
from acp_world import Editor, editing
from agent_world import call, say, serving
from host_world import client_of, hosting, opening
from waiting import PATIENCE, until

from fulgur.protocol.agent import TurnStopped
from fulgur.protocol.session import Status
from fulgur.ui.acp.images import Images
from fulgur.ui.acp.session import AcpSession
from fulgur.ui.acp.wire import prompt_text


async def new(editor: Editor, workspace: Path) -> str:
    return str((await editor.connection.new_session(cwd=str(workspace), mcp_servers=[])).session_id)


async def test_a_prompt_streams_with_calls_diffs_plan_and_speed(workspace: Path) -> None:
    (workspace / "a.py").write_text("x = 1\n")
    replies = [
        call("update_plan", {"plan": [{"step": "change x", "status": "in_progress"}]}, times=1),
        call("read", {"path": "a.py"}, times=1),
        call("edit", {"path": "a.py", "old": "x = 1", "new": "x = 2"}, times=1),
        say("Done with x."),
    ]
    async with serving(replies) as server, hosting():
        async with editing(opening(server, workspace)["overrides"]) as editor:
            session = await new(editor, workspace)
            answer = await editor.say(session, "change x")
            assert answer.stop_reason == "end_turn" and answer.usage.output_tokens > 0
            assert editor.text() == "Done with x."
            kinds = [update.kind for update in editor.of("tool_call")]
            assert kinds == ["think", "read", "edit"]
            assert editor.of("tool_call")[1].locations[0].path == str(workspace / "a.py")
            [diff] = [c for u in editor.of("tool_call_update") for c in u.content or [] if c.type == "diff"][:1]
            assert (diff.path, diff.old_text, diff.new_text) == (str(workspace / "a.py"), "x = 1\n", "x = 2\n")
            assert editor.of("tool_call_update")[-1].status == "completed"
            assert [entry.content for entry in editor.of("plan")[0].entries] == ["change x"]
            usage = editor.of("usage_update")[-1]
            assert usage.size == 200_000 and usage.field_meta["fulgur"]["tokensPerSecond"] > 0
            assert {c.name for c in editor.of("available_commands_update")[0].available_commands} >= {"steer", "queue"}


async def test_all_three_ways_to_steer(workspace: Path) -> None:
    replies = [say("count " * 500, match="count"), say("more " * 500, match="more"), say("Stopped.")]
    async with serving(replies, rate=300) as server, hosting():
        async with editing(opening(server, workspace)["overrides"]) as editor:
            session = await new(editor, workspace)
            blocks = [{"type": "text", "text": "enough"}]
            idle = {"sessionId": session, "prompt": blocks, "_meta": {"steering": {"idleBehavior": "promptRequired"}}}
            assert await editor.connection.ext_method("session/steering", idle) == {"outcome": "promptRequired"}
            # A prompt while one runs redirects it, and both end with the shared turn.
            first = asyncio.create_task(editor.say(session, "count"))
            await editor.until(lambda u: u.session_update == "agent_message_chunk")
            second = asyncio.create_task(editor.say(session, "more"))
            await editor.until(lambda u: u.session_update == "agent_message_chunk" and "more" in u.content.text)
            # The extension method.
            told = await editor.connection.ext_method("session/steering", {"sessionId": session, "prompt": blocks})
            assert told == {"outcome": "injected"}
            assert {(await first).stop_reason, (await second).stop_reason} == {"end_turn"}
            said = editor.text()
            assert said.endswith("Stopped.") and said.count("count") < 500 and said.count("more") < 500
            assert editor.text("user_message_chunk") == "enough"  # nobody waits for it, so it is shown
            # /steer and /queue, and the extension method when idle.
            third = asyncio.create_task(editor.say(session, "count again"))
            seen = len(editor.updates)
            while not any(u.session_update == "agent_message_chunk" for _, u in editor.updates[seen:]):
                await asyncio.sleep(0.01)
            queued = asyncio.create_task(editor.say(session, "/queue and then"))
            await editor.say(session, "/steer enough")
            assert (await third).stop_reason == "end_turn" == (await queued).stop_reason
            told = await editor.connection.ext_method("session/steering", {"sessionId": session, "prompt": blocks})
            assert told == {"outcome": "startedNewTurn"}


async def test_cancel_keeps_what_was_said(workspace: Path) -> None:
    async with serving([say("word " * 1000)], rate=300) as server, hosting():
        async with editing(opening(server, workspace)["overrides"]) as editor:
            session = await new(editor, workspace)
            running = asyncio.create_task(editor.say(session, "go"))
            await editor.until(lambda u: u.session_update == "agent_message_chunk")
            await editor.connection.cancel(session_id=session)
            assert (await running).stop_reason == "cancelled"
            assert 0 < editor.text().count("word") < 1000


def test_files_are_named_by_their_paths() -> None:
    blocks = [
        {"type": "text", "text": "look at "},
        {"type": "resource_link", "uri": "file:///home/me/caf%C3%A9%20menu.py"},
        {"type": "resource_link", "uri": "zed:///agent/thread%20one"},
    ]
    assert prompt_text(blocks, Images()) == "look at  @/home/me/café menu.py  @zed:///agent/thread%20one"


async def test_a_cancelled_prompt_that_is_queued_never_begins(workspace: Path) -> None:
    replies = [say("count " * 500, match="count"), say("ok")]
    async with serving(replies, rate=300) as server, hosting() as listener:
        async with editing(opening(server, workspace)["overrides"]) as editor:
            session = await new(editor, workspace)
            agent = listener.host.sessions[session].agent
            running = asyncio.create_task(editor.say(session, "count"))
            await editor.until(lambda u: u.session_update == "agent_message_chunk")
            queued = asyncio.create_task(editor.say(session, "/queue and then"))
            await until(lambda: agent.state.queued == ["and then"])
            await editor.connection.cancel(session_id=session)
            assert (await running).stop_reason == "cancelled" == (await queued).stop_reason
            assert (await editor.say(session, "go on")).stop_reason == "end_turn"
            await agent.wait()
            assert [turn.text for turn in agent.state.turns] == ["count", "go on"]


async def test_a_cancel_right_behind_its_prompt_cancels_it(workspace: Path) -> None:
    async with serving([say("word " * 200)], rate=2000) as server, hosting():
        async with editing(opening(server, workspace)["overrides"]) as editor:
            session = await new(editor, workspace)
            running = asyncio.create_task(editor.say(session, "go"))
            await asyncio.sleep(0)  # it is sent, and the cancel behind it
            await editor.connection.cancel(session_id=session)
            assert (await running).stop_reason == "cancelled"
            assert editor.text().count("word") < 200


async def test_a_prompt_behind_a_cancel_is_not_cancelled_with_it(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the cancelled turn is heard of late, when the next prompt is there already."""
    late, really = asyncio.Event(), AcpSession._on

    async def on(self: AcpSession, event: Any) -> None:
        if isinstance(event, TurnStopped):
            await late.wait()
        await really(self, event)

    monkeypatch.setattr(AcpSession, "_on", on)
    replies = [say("word " * 1000, match="count"), say("Here.")]
    async with serving(replies, rate=300) as server, hosting() as listener:
        async with editing(opening(server, workspace)["overrides"]) as editor:
            session = await new(editor, workspace)
            first = asyncio.create_task(editor.say(session, "count"))
            await editor.until(lambda u: u.session_update == "agent_message_chunk")
            await editor.connection.cancel(session_id=session)
            agent = listener.host.sessions[session].agent
            await until(lambda: not agent.running)
            second = asyncio.create_task(editor.say(session, "and now"))
            await until(lambda: len(agent.state.turns) == 2)
            late.set()
            assert ((await first).stop_reason, (await second).stop_reason) == ("cancelled", "end_turn")


async def test_a_session_that_was_ended_elsewhere_goes_on_with_the_next_prompt(workspace: Path) -> None:
    async with serving([say("Here.")]) as server, hosting(), client_of() as other:
        async with editing(opening(server, workspace)["overrides"]) as editor:
            session = await new(editor, workspace)
            await editor.say(session, "first")
            await other.tell("session.close", session=session)
            assert (await asyncio.wait_for(editor.say(session, "second"), PATIENCE)).stop_reason == "end_turn"
            assert editor.text() == "Here.Here."


@pytest.mark.parametrize(("answer", "made"), [("allow", True), ("deny", False), (None, False)])
async def test_permissions(workspace: Path, answer: str | None, made: bool) -> None:
    (workspace / "a.py").write_text("x = 1\n")
    replies = [call("edit", {"path": "a.py", "old": "x = 1", "new": "x = 2"}, times=1), say("Done.")]
    async with serving(replies) as server, hosting():
        async with editing(opening(server, workspace, "approval_policy=untrusted")["overrides"]) as editor:
            editor.answer = lambda asked: answer
            session = await new(editor, workspace)
            told = await editor.say(session, "change x")
            assert told.stop_reason == ("cancelled" if answer is None else "end_turn")
            assert ((workspace / "a.py").read_text() == "x = 2\n") == made
            [(tool, options)] = editor.asked
            assert tool.tool_call_id == editor.of("tool_call")[0].tool_call_id
            assert [option.kind for option in options] == ["allow_once", "allow_always", "reject_once"]


async def test_a_question_among_missed_events_is_asked(workspace: Path) -> None:
    (workspace / "a.py").write_text("x = 1\n")
    replies = [call("edit", {"path": "a.py", "old": "x = 1", "new": "x = 2"}, times=1), say("Done.")]
    async with serving(replies) as server, hosting() as listener:
        async with editing(opening(server, workspace, "approval_policy=untrusted")["overrides"]) as editor:
            session = await new(editor, workspace)
            listener.host.sessions[session].feed._most = 1  # whatever comes at once is missed, but for its last event
            told = await asyncio.wait_for(editor.say(session, "change x"), PATIENCE)
            assert told.stop_reason in ("end_turn", "cancelled") and len(editor.asked) == 1
            assert (workspace / "a.py").read_text() == "x = 2\n"


async def test_a_question_answered_elsewhere_is_withdrawn(workspace: Path) -> None:
    (workspace / "a.py").write_text("x = 1\n")
    replies = [call("edit", {"path": "a.py", "old": "x = 1", "new": "x = 2"}, times=1), say("Done.")]
    async with serving(replies) as server, hosting() as listener, client_of() as other:
        async with editing(opening(server, workspace, "approval_policy=untrusted")["overrides"]) as editor:
            never = asyncio.Event()
            editor.answer = lambda asked: never.wait()
            session = await new(editor, workspace)
            running = asyncio.create_task(editor.say(session, "change x"))
            while not editor.asked:
                await asyncio.sleep(0.01)
            [waiting] = listener.host.sessions[session]._waiting
            await other.tell("approval.answer", session=session, approval=waiting, decision="once")
            assert (await running).stop_reason == "end_turn"
            assert (workspace / "a.py").read_text() == "x = 2\n"
            never.set()


async def test_files_are_read_and_written_through_the_editor(workspace: Path) -> None:
    """It sees what is not saved, and the editor's own review sees the change; what is no plain text goes to the
    disk."""
    plain, other = workspace / "a.py", workspace / "b.txt"
    plain.write_text("x = 1\n")
    other.write_bytes(b"one\r\ntwo\r\n")
    replies = [
        call("read", {"path": "a.py"}, times=1),
        call("edit", {"path": "a.py", "old": "unsaved = 1", "new": "unsaved = 2"}, times=1),
        call("edit", {"path": "b.txt", "old": "one", "new": "ONE"}, times=1),
        say("Done."),
    ]
    able = ClientCapabilities(fs=FileSystemCapabilities(read_text_file=True, write_text_file=True))
    async with serving(replies) as server, hosting():
        async with editing(opening(server, workspace)["overrides"], client_capabilities=able) as editor:
            editor.files[str(plain)] = "unsaved = 1\n"
            session = await new(editor, workspace)
            await editor.say(session, "change it")
            assert plain.read_text() == "unsaved = 2\n" and editor.written == [str(plain)]
            assert other.read_bytes() == b"ONE\r\ntwo\r\n"


async def test_sessions_are_listed_loaded_resumed_forked_closed_and_deleted(workspace: Path) -> None:
    async with serving([say("Hello."), say("Again.")]) as server, hosting():
        overrides = opening(server, workspace)["overrides"]
        async with editing(overrides) as editor:
            session = await new(editor, workspace)
            await editor.say(session, "hi")
        async with editing(overrides) as editor:  # another start of the editor
            listed = await editor.connection.list_sessions(cwd=str(workspace))
            assert [(info.session_id, info.title) for info in listed.sessions] == [(session, "hi")]
            where: dict[str, Any] = {"cwd": str(workspace), "session_id": session, "mcp_servers": []}
            loaded = await editor.connection.load_session(**where)
            assert {option.id for option in loaded.config_options} == {"mode", "model"} and loaded.modes
            assert editor.text("user_message_chunk") == "hi" and editor.text() == "Hello."
            editor.updates.clear()
            resumed = await editor.connection.resume_session(**where)
            assert resumed.config_options and editor.text() == ""
            assert (await editor.say(session, "more")).stop_reason == "end_turn"
            fork = await editor.connection.fork_session(**where)
            assert fork.session_id != session and fork.config_options
            await editor.connection.close_session(session_id=session)
            with pytest.raises(RequestError):
                await editor.say(session, "closed")
            await editor.connection._conn.send_request("session/delete", {"sessionId": session})
            listed = await editor.connection.list_sessions(cwd=str(workspace))
            assert [info.session_id for info in listed.sessions] == [fork.session_id]


async def test_modes_and_models_are_options(workspace: Path) -> None:
    async with serving([say("Hi.")], more={"other": [say("Ho.")]}) as server, hosting(), client_of() as client:
        async with editing(opening(server, workspace)["overrides"]) as editor:
            session = await new(editor, workspace)
            set_option = editor.connection.set_config_option
            told = await set_option(session_id=session, config_id="model", value="other")
            assert next(o for o in told.config_options if o.id == "model").current_value == "other"
            await editor.say(session, "hello")
            assert editor.text() == "Ho."
            await set_option(session_id=session, config_id="mode", value="read")
            status = await client.call("session.status", Status, session=session)
            assert status.sandbox.startswith("read-only")
            await editor.connection.set_session_mode(session_id=session, mode_id="ask")
            assert editor.of("current_mode_update")[-1].current_mode_id == "ask"
            # A mode is the session's own, and there again when it is opened again. Full access is not.
            for mode, then in (("read", "read"), ("full", "auto")):
                await set_option(session_id=session, config_id="mode", value=mode)
                await editor.connection.close_session(session_id=session)
                where: dict[str, Any] = {"cwd": str(workspace), "session_id": session, "mcp_servers": []}
                again = await editor.connection.resume_session(**where)
                assert again.modes.current_mode_id == again.config_options[0].current_value == then
            for wrong in ({"config_id": "model", "value": "none"}, {"config_id": "mode", "value": "none"}):
                with pytest.raises(RequestError):
                    await set_option(session_id=session, **wrong)


async def test_an_image_reaches_a_model_that_sees(workspace: Path, home: Path) -> None:
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n and so on").decode()
    blocks = [{"type": "text", "text": "look:"}, {"type": "image", "data": data, "mimeType": "image/png"}]
    async with serving([say("A picture.")]) as server, hosting():
        async with editing(opening(server, workspace)["overrides"]) as editor:
            session = await new(editor, workspace)
            await editor.connection._conn.send_request("session/prompt", {"sessionId": session, "prompt": blocks})
            assert editor.text() == "A picture."
    held = [path.read_bytes() for path in (home / "sessions").rglob("*") if path.is_file()]
    assert any(f"data:image/png;base64,{data}".encode() in one for one in held)


async def test_commands_and_prompts_that_cannot_be(workspace: Path) -> None:
    async with serving([say("Hi.")]) as server, hosting():
        async with editing(opening(server, workspace)["overrides"]) as editor:
            session = await new(editor, workspace)
            assert (await editor.say(session, "/status")).stop_reason == "end_turn"
            assert "m works with tools" in editor.text()
            for blocks in (
                [],
                [{"type": "image", "data": "", "mimeType": "image/png"}],
                [{"type": "image", "data": "AAAA", "mimeType": "image/tiff"}],
                [{"type": "image", "data": "no base64", "mimeType": "image/png"}],
                [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}],
                [{"type": "text", "text": " "}],
            ):
                with pytest.raises(RequestError):
                    given = {"sessionId": session, "prompt": blocks}
                    await editor.connection._conn.send_request("session/prompt", given)
            with pytest.raises(RequestError):
                await editor.say("nothing", "hi")
            with pytest.raises(RequestError):
                await editor.say(session, "/undo")  # nothing to undo is an error with words
            link = {"type": "resource_link", "uri": f"file://{workspace}/a.py", "name": "a.py"}
            await editor.connection._conn.send_request("session/prompt", {"sessionId": session, "prompt": [link]})
            assert editor.text().endswith("Hi.")


async def test_the_program_itself_on_pipes(workspace: Path) -> None:
    """stdout carries the protocol and nothing else; the program ends with its input."""
    async with serving([say("Hello.")]) as server, hosting():
        words = [word for given in opening(server, workspace)["overrides"] for word in ("-c", given)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fulgur", "acp", *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdin and process.stdout
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
        opened = {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "session/new",
            "params": {"cwd": str(workspace), "mcpServers": []},
        }
        process.stdin.write(b"not json\n" + json.dumps(hello).encode() + b"\n" + json.dumps(opened).encode() + b"\n")
        first, second, third = [json.loads(await process.stdout.readline()) for _ in range(3)]
        assert first["error"]["code"] == -32700 and second["result"]["protocolVersion"] == 1
        assert third["id"] == 2 and third["result"]["sessionId"]
        process.stdin.close()
        assert await process.wait() == 0
