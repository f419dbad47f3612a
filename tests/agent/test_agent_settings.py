"""What follows from the config: rules, models, profiles, warnings, status."""

from pathlib import Path

import pytest
from agent_world import agent_on, call, needs_sandbox, say, serving, settings_for
from aiohttp import web

from fulgur.agent.agent import Agent
from fulgur.agent.loop.prompt import instructions
from fulgur.backends.base import Capabilities
from fulgur.config.settings import load_settings
from fulgur.errors import FulgurError
from fulgur.protocol.agent import MessageDelta, ToolFinished, TurnDone, TurnStarted, UsageReported, Waiting, Warned
from fulgur.sandbox.policy import Policy
from fulgur.server.config import Pool


def test_each_rule_of_the_instructions_has_a_line_of_its_own(home: Path, workspace: Path) -> None:
    settings = load_settings(workspace)
    told = instructions(settings, Policy.make("workspace-write", workspace, home), [])
    rules = [line for line in told.split("\n") if line.startswith("- ")]
    assert len(rules) == told.count("- ") == 8
    assert all(line[2].isupper() for line in rules)


async def test_rules_come_from_every_agents_file(home: Path, workspace: Path) -> None:
    (home / "AGENTS.md").write_text("Mine.")
    (workspace / ".git").mkdir()
    (workspace / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (workspace / "AGENTS.md").write_text("Project.")
    (workspace / "sub/RULES.md").write_text("Sub.")

    async with serving([say("ok")]) as server:
        fallback = "project_doc_fallback_filenames=['RULES.md']"
        async with agent_on(server, workspace / "sub", fallback) as watch:
            sent = watch.agent.guidance.instructions
            assert sent.index("Mine.") < sent.index("Project.") < sent.index("Sub.")
            assert [Path(rule).name for rule in watch.agent.status().rules] == [
                "AGENTS.md",
                "AGENTS.md",
                "RULES.md",
            ]
        async with agent_on(server, workspace, "project_doc_max_bytes=4") as watch:
            assert "Mine" in watch.agent.guidance.instructions and "Project." not in watch.agent.guidance.instructions
            (home / "AGENTS.md").write_text("New.")
            await watch.turn("hi")
            assert "New." in watch.agent.guidance.instructions


async def test_switching_the_model_changes_who_answers(workspace: Path) -> None:
    async with serving([say("From m.")], more={"n": [say("From n.")]}) as server:
        async with agent_on(server, workspace) as watch:
            assert (await watch.turn("one")).text == "From m."
            await watch.agent.set_model("n")
            assert (await watch.turn("two")).text == "From n."
            assert [u.model for u in watch.of(UsageReported)] == ["m", "n"]
            assert watch.agent.status().answering_model == "n"
            assert await watch.agent.models() == ["m", "n"]
            with pytest.raises(FulgurError, match="has no model 'x'"):
                await watch.agent.set_model("x")
            assert (await watch.turn("three")).text == "From n."


@needs_sandbox
async def test_a_profile_changes_the_sandbox(home: Path, workspace: Path) -> None:
    (home / "config.toml").write_text('[profiles.careful]\nsandbox_mode = "read-only"\n')

    replies = [call("shell", {"command": "echo x > sub/f"}, times=1), say("ok")]
    async with serving(replies) as server, agent_on(server, workspace) as watch:
        await watch.agent.set_profile("careful")
        await watch.turn("write")
        assert not watch.of(ToolFinished)[0].ok and not (workspace / "sub/f").exists()
        assert watch.agent.status().sandbox.startswith("read-only, no network")


async def test_keys_without_effect_are_warned_about_by_name(home: Path, workspace: Path) -> None:
    (home / "config.toml").write_text('model_reasoning_effort = "high"\n')
    plain = Capabilities(context=4096, chat=True, tools=False)

    async with serving([say("ok")], capabilities=plain) as server, agent_on(server, workspace) as watch:
        await watch.turn("hi")
        warning = next(w.message for w in watch.of(Warned))
        assert warning.startswith("model_reasoning_effort (") and "has no effect: m has no reasoning" in warning
        assert watch.of(TurnStarted)[0].way == "chat"


async def test_status_says_what_is_what(home: Path, workspace: Path) -> None:
    prices = ["model_prices.m.input=1.0", "model_prices.m.output=2.0"]
    async with serving([say("four words are said")]) as server:
        async with agent_on(server, workspace, *prices, "service_tier=fast") as watch:
            assert watch.agent.status().answering_model == ""
            await watch.turn("hi")
            status = watch.agent.status()
            assert (status.model, status.answering_model, status.provider) == ("m", "m", "test")
            assert status.fast and status.turns == 1 and status.context_used > 0
            assert status.cost is not None and status.cost > 0
            assert ("service_tier", '"fast"', "-c") in status.config
            watch.agent.set_fast(False)
            assert not watch.agent.status().fast


async def test_the_place_in_the_queue_is_told_and_fast_is_the_servers_priority(workspace: Path) -> None:
    long = {"steps": [{"tokens": 100_000}], "match": "long"}
    async with serving([long, say("here")], rate=300, pool=Pool(concurrent=1)) as server:
        async with agent_on(server, workspace) as busy, agent_on(server, workspace) as one:
            busy.agent.submit("a long story")
            await busy.until(MessageDelta)
            one.agent.set_fast(True)
            one.agent.submit("first")
            assert (await one.until(Waiting)).position == 1
            busy.agent.stop()
            await one.until(TurnDone)
            assert [told.position for told in one.of(Waiting)] == [1, 0]
            assert not [told for told in one.of(Warned) if "tier" in told.message]


async def test_a_server_without_a_fast_tier_is_said_once(workspace: Path) -> None:
    async with serving([say("ok")]) as server, agent_on(server, workspace, "service_tier=fast") as watch:
        await watch.turn("hi")
        await watch.turn("hi")
        told = [warned.message for warned in watch.of(Warned) if "tier" in warned.message]
        assert told == ["the server has no fast tier: it answered in the tier default"]


async def test_each_subscription_gets_every_event(workspace: Path) -> None:
    async with serving([say("ok")]) as server, agent_on(server, workspace) as watch:
        second = watch.agent.events()
        await watch.turn("hi")
        assert type(await anext(second)).__name__ == "TurnStarted"
        await second.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("status", "words"), [(404, "does not speak the Responses API"), (401, "refused the API key")])
async def test_a_server_without_the_socket_says_what_to_do(workspace: Path, status: int, words: str) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=status)

    other = web.Application()
    other.router.add_route("*", "/{path:.*}", refuse)
    runner = web.AppRunner(other)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    with pytest.raises(FulgurError, match=words):
        await Agent.open(settings_for(f"http://127.0.0.1:{port}/v1", workspace))
    await runner.cleanup()
