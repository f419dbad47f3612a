"""What goes wrong around the model: a full context, a dropped socket, a server that is gone."""

import asyncio
from pathlib import Path

import pytest
from agent_world import Proxy, agent_on, call, say, serving
from waiting import until

from fulgur.agent.loop.compaction import beginning
from fulgur.agent.session.history import CHECKED, IN_FORM, item_text, message
from fulgur.backends.local import LocalBackend
from fulgur.config.settings import Provider
from fulgur.errors import FulgurError
from fulgur.protocol.agent import Compacted, Compacting, MessageDelta, ToolStarted, TurnDone, TurnFailed, Warned
from fulgur.server.config import Model
from fulgur.server.registry import ServedModel


async def test_compaction_keeps_rules_and_open_work(workspace: Path) -> None:
    """The context fills up in the middle of a turn; rules, the task and the next step survive, and the work goes on."""
    (workspace / "AGENTS.md").write_text("Never use tabs.\n")
    (workspace / "big.txt").write_text("lorem ipsum dolor sit amet\n" * 400)
    replies = [
        say("Open: finish step two. Decided: use spaces.", match="^Summarise our work"),
        say("Finished after compaction.", match="replaced by this record"),
        call("read", {"path": "big.txt"}),
    ]

    options = ["features.guards=false", "model_auto_compact_token_limit=9000"]
    async with serving(replies, context=20_000) as server, agent_on(server, workspace, *options) as watch:
        end = await watch.turn("Always answer in German. Do step two.")
        assert isinstance(end, TurnDone), end
        assert end.text == "Finished after compaction."
        compacted = watch.of(Compacted)
        assert len(compacted) == 1 and compacted[0].after_tokens < compacted[0].before_tokens / 2
        seen = watch.agent.state.history.visible()
        start = item_text(seen[0])
        assert "Always answer in German. Do step two." in start
        assert "Open: finish step two." in start
        assert "Never use tabs." in watch.agent.guidance.instructions
        everything = watch.agent.state.history.everything()
        assert sum(item["type"] == "function_call" for item in everything) >= 2


async def test_the_server_says_the_context_is_full(workspace: Path) -> None:
    """Our estimate was too low: the server refuses, we compact and go on."""

    replies = [say("Sum.", match="^Summarise"), say("short again", match="replaced"), {"steps": [{"tokens": 1500}]}]
    async with serving(replies, context=4000) as server:
        async with agent_on(server, workspace, "model_context_window=100000") as watch:
            ends = [await watch.turn(f"say a lot {n}") for n in range(3)]
            assert all(isinstance(end, TurnDone) for end in ends), ends
            assert watch.of(Compacted)


async def test_compaction_without_a_summary_keeps_what_is_certain(workspace: Path) -> None:
    broken = {"match": "^Summarise", "steps": [{"fail": "the engine died"}]}
    long = say("Noted." + " and so on" * 200, match="rule", times=1)
    async with serving([broken, long, say("Noted.")]) as server, agent_on(server, workspace) as watch:
        await watch.turn("rule: no globals")
        await watch.agent.compact()
        await watch.until(lambda e: isinstance(e, Warned) and "could not summarise" in e.message)
        start = item_text(watch.agent.state.history.visible()[0])
        assert "rule: no globals" in start and "Noted." in start
        assert isinstance(await watch.turn("go on"), TurnDone)
        assert isinstance(await watch.turn("more " * 600), TurnDone)
        state = watch.agent.state
        state.add_items([message("assistant", "a long answer " * 300)])
        await watch.agent.compact()
        start = item_text(watch.agent.state.history.visible()[0])
        assert start.count("- rule: no globals\n") == start.count("- go on\n") == 1


async def test_a_record_that_is_longer_than_the_conversation_is_not_taken(workspace: Path) -> None:
    wordy = say("First " + "and then " * 400, match="^Summarise")
    async with serving([wordy, say("Noted.")]) as server, agent_on(server, workspace) as watch:
        await watch.turn("hello")
        before = watch.agent.state.history.visible()
        with pytest.raises(FulgurError, match="a summary would be longer than the conversation"):
            await watch.agent.compact()
        assert watch.agent.state.history.visible() == before


def test_what_we_put_to_the_model_is_not_taken_for_the_persons_words() -> None:
    items = [message("user", "rule one"), message("user", f"{CHECKED} Fix it:\nline 3"), message("user", IN_FORM)]
    start = item_text(beginning(items, "Sum.", [], [], 1000)[0])
    assert "- rule one" in start and "Fix it" not in start and "follows the schema" not in start


def test_the_persons_words_are_never_dropped_without_a_word() -> None:
    items = [
        message("user", "rule one"),
        message("assistant", "ok"),
        message("user", "x" * 3000),
        message("user", "last"),
    ]
    start = item_text(beginning(items, "Sum.", ["a.py"], [], 1000)[0])
    assert "- last" in start and "characters left out" in start and "[1 earlier messages do not fit here]" in start
    assert len(start) < 1500
    everything = item_text(beginning(items, "", [], [], 100_000)[0])
    assert "- rule one\n" in everything and "x" * 3000 in everything


async def test_a_dropped_socket_resumes_and_shows_nothing_twice(workspace: Path) -> None:
    replies = [{"steps": [{"tokens": 20_000}], "times": 1}, say(" and the rest.")]

    async with serving(replies, rate=600) as server, Proxy(server) as proxy:
        async with agent_on(proxy, workspace) as watch:
            watch.agent.submit("go")
            await until(lambda: len(watch.text) > 60)
            opened = proxy.opened
            proxy.cut()
            end = await watch.until(lambda e: isinstance(e, TurnDone | TurnFailed))
            assert isinstance(end, TurnDone), end
            assert proxy.opened > opened
            head, _, rest = watch.text.partition(" and the rest.")
            assert rest == ""
            assert head == "".join(f" w{n:04d}" for n in range(len(head) // 6)) and 60 < len(head) < 120_000
            assert end.text == watch.text == item_text(watch.agent.state.history.everything()[-1])
            assert len(watch.agent.state.history.everything()) == 2


async def test_a_socket_that_drops_between_steps(workspace: Path) -> None:
    replies = [call("shell", {"command": "sleep 0.3; echo one"}, times=1), say("Both done.")]

    async with serving(replies) as server, Proxy(server) as proxy:
        async with agent_on(proxy, workspace) as watch:
            watch.agent.submit("go")
            await watch.until(ToolStarted)
            proxy.cut()
            assert (await watch.until(lambda e: isinstance(e, TurnDone | TurnFailed))).text == "Both done."
            assert watch.outputs == ["one"]


async def test_a_server_that_is_gone_fails_the_turn(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulgur.client.connection.RETRY_DELAYS", (0.0, 0.05))

    async with serving([say("ok")]) as server, Proxy(server) as proxy:
        async with agent_on(proxy, workspace) as watch:
            await watch.turn("one")
            proxy.close()
            end = await watch.turn("two")
            assert isinstance(end, TurnFailed)
            assert [t.ended for t in watch.agent.state.turns] == ["done", "failed"]


async def test_steering_where_the_server_cannot(workspace: Path) -> None:
    """Another maker's server has no steering: the answer is cut, kept, and the new direction asked for."""
    replies = [{"match": "^long", "steps": [{"tokens": 5000}]}, say("In the new direction.", match="shorter")]

    async with serving(replies, rate=400) as server, agent_on(server, workspace) as watch:
        watch.agent.link.connection.is_fulgur = False
        watch.agent.submit("long story")
        await watch.until(MessageDelta)
        watch.agent.steer("shorter please")
        assert (await watch.until(lambda e: isinstance(e, TurnDone | TurnFailed))).text == "In the new direction."
        said = [(i["role"], item_text(i)) for i in watch.agent.state.history.everything()]
        assert [role for role, _ in said] == ["user", "assistant", "user", "assistant"]
        assert said[1][1] + said[3][1] == watch.text


async def test_a_failed_request_is_repeated_and_said(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulgur.agent.loop.retry._SECONDS", (0.0, 0.01, 0.02))
    broken = {"steps": [{"fail": "out of memory"}], "times": 2}
    async with serving([broken, say("there it is")]) as server, agent_on(server, workspace) as watch:
        assert (await watch.turn("go")).text == "there it is"
        said = [event.message for event in watch.of(Warned) if "request failed" in event.message]
        assert said == [f"request failed (out of memory); retrying in {seconds} s" for seconds in ("0", "0.01")]


async def test_a_request_that_goes_on_failing_is_given_up(workspace: Path) -> None:
    broken = {"steps": [{"fail": "out of memory"}]}
    retries = "model_providers.test.request_max_retries=0"
    async with serving([broken]) as server, agent_on(server, workspace, retries) as watch:
        assert (await watch.turn("go")).message == "out of memory"


async def test_a_model_that_cannot_be_started_is_not_waited_for(workspace: Path) -> None:
    async with serving([say("never")]) as server:
        gone = LocalBackend("m", Model(backend="local", path="/nowhere"))
        server.server.models.entries["m"] = ServedModel("m", Model(backend="local"), gone, None)
        async with agent_on(server, workspace) as watch:
            end = await watch.turn("go")
            assert isinstance(end, TurnFailed) and "There is no model at /nowhere" in end.message
            assert not [event for event in watch.of(Warned) if "request failed" in event.message]


async def test_nothing_is_said_twice_by_repeating(workspace: Path) -> None:
    broken = {"steps": [{"text": "Half"}, {"fail": "the engine died"}], "times": 1}
    async with serving([broken, say("whole")]) as server, agent_on(server, workspace) as watch:
        end = await watch.turn("go")
        assert isinstance(end, TurnFailed) and end.text == watch.text == "Half"


async def test_a_server_that_moved_is_found_in_mid_turn(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gives up on its socket; the turn looks for the server once more and goes on."""
    monkeypatch.setattr("fulgur.client.connection.RETRY_DELAYS", (0.0,))
    async with serving([say("w " * 300, match="go", times=1), say("done")], rate=200) as server, Proxy(server) as proxy:
        async with agent_on(proxy, workspace) as watch:
            watch.agent.submit("go")
            await watch.until(MessageDelta)
            monkeypatch.setattr(
                "fulgur.config.settings.Settings.provider", Provider("test", "test", server.base_url), raising=True
            )
            proxy.close()
            end = await watch.until(lambda e: isinstance(e, TurnDone | TurnFailed))
            assert isinstance(end, TurnDone) and end.text == "done"
            assert any("looking for the server again" in event.message for event in watch.of(Warned))
            await watch.agent.wait()


async def test_compaction_says_how_far_it_is_and_can_be_stopped(workspace: Path) -> None:
    slow = {"match": "^Summarise", "steps": [{"tokens": 400}]}
    async with serving([slow, say("Noted." + " and so on" * 200)], rate=400) as server:
        async with agent_on(server, workspace) as watch:
            await watch.turn("a rule")
            before = watch.agent.state.history.visible()
            work = asyncio.create_task(watch.agent.compact())
            await watch.until(lambda e: isinstance(e, Compacting) and e.written_tokens > 10)
            watch.agent.stop()
            with pytest.raises(FulgurError, match="nothing was compacted"):
                await work
            assert watch.agent.state.history.visible() == before
            assert (await watch.turn("still there?")).text.startswith("Noted.")


async def test_the_context_is_known_after_a_stop_and_a_resume(workspace: Path) -> None:
    async with serving([{"steps": [{"tokens": 4000}]}], rate=1000) as server:
        async with agent_on(server, workspace) as watch:
            watch.agent.submit("go")
            await watch.until(MessageDelta)
            watch.agent.stop()
            await watch.agent.wait()
            stopped = watch.agent.status()
            assert stopped.context_used > 100
        async with agent_on(server, workspace, session=stopped.session_id) as watch:
            assert watch.agent.status().context_used > 100
