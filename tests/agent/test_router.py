"""`model = "auto"`: what is decided and why, who takes over when the fast model drifts, and what both cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_world import agent_on, call, say, serving, settings_for

from fulgur.agent.agent import Agent
from fulgur.agent.route.drift import Drift
from fulgur.agent.route.rules import Task, decide
from fulgur.backends.base import Capabilities
from fulgur.config.settings import load_settings
from fulgur.errors import UsageError
from fulgur.protocol.agent import MessageDelta, RouteCosts, Routed, TurnDone, UsageReported
from fulgur.ui.cli import main

AUTO = ("model=auto", "router.fast=m", "router.deep=deep", "features.quick_tests=false")


def patch(path: str, old: str, new: str) -> str:
    return f"*** Begin Patch\n*** Update File: {path}\n@@\n-{old}\n+{new}\n*** End Patch\n"


@pytest.mark.parametrize(
    ("prompt", "side", "rule"),
    [
        ("rename total to amount in shop.py", "fast", "edit"),
        ("add a docstring to @src/app.py", "fast", "edit"),
        ("what does the cache do?", "fast", "question"),
        ("make shop.py faster", "fast", "one-file"),
        ("move the helpers from a.py to b.py", "deep", "many-files"),
        ("replace print by logging everywhere", "deep", "multi-file"),
        ("design a plugin system", "deep", "architecture"),
        ("the test of the parser fails, fix it", "deep", "tests"),
        ("make it better", "deep", "default"),
    ],
)
def test_the_task_decides(workspace: Path, prompt: str, side: str, rule: str) -> None:
    chosen = decide(Task(prompt), load_settings(workspace, overrides=list(AUTO)))
    assert (chosen.side, chosen.rule) == (side, rule)


def test_a_full_context_and_a_model_that_only_edits_go_deep(workspace: Path) -> None:
    settings = load_settings(workspace, overrides=list(AUTO))
    assert decide(Task("rename a to b", context_percent=61), settings).rule == "long-context"
    only_edits = decide(Task("what is this?", fast_abilities={"edit"}), settings)
    assert (only_edits.side, only_edits.why) == ("deep", "the fast model only edits")


def test_rules_are_data(home: Path, workspace: Path) -> None:
    (home / "config.toml").write_text(
        'model = "auto"\n[router]\nfast = "m"\ndeep = "ollama:big:7b"\ndefault = "fast"\n'
        '[router.rules.money]\nuse = "deep"\nwords = ["invoice|tax"]\nwhy = "money is involved"\n'
        '[router.rules.tests]\nuse = "off"\n'
    )
    settings = load_settings(workspace)
    assert str(decide(Task("rename tax to vat"), settings)) == "deep, ollama:big:7b: money is involved (“tax”)"
    assert decide(Task("the tests fail"), settings).rule == "default"
    with pytest.raises(UsageError, match="would match everything"):
        decide(Task("x"), load_settings(workspace, overrides=["router.rules.all.use=fast"]))
    with pytest.raises(UsageError, match="not a regular expression"):
        wrong = ["router.rules.a.use=fast", "router.rules.a.words=['(']"]
        decide(Task("x"), load_settings(workspace, overrides=wrong))


def test_route_explains_without_acting(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [word for pair in AUTO for word in ("-c", pair)]
    assert main(["route", "-C", str(workspace), *flags, "rename a to b"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("fast, m: a small edit in one place (“rename”)  [rule edit]\n")
    assert "  → edit" in told
    assert main(["route", "-C", str(workspace), *flags, "--json", "rename a to b"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert (fields["side"], fields["rule"], len(fields["rules"])) == ("fast", "edit", 8)
    with pytest.raises(UsageError, match=r"router.fast is not set"):
        decide(Task("rename a to b"), load_settings(workspace))


async def test_a_turn_says_who_works_on_it(workspace: Path) -> None:
    async with serving([say("Fast.")], more={"deep": [say("Deep.")]}) as server:
        async with agent_on(server, workspace, *AUTO) as watch:
            assert (await watch.turn("rename a to b")).text == "Fast."
            assert (await watch.turn("design it anew")).text == "Deep."
            assert (await watch.turn("rename c to d")).text == "Fast."
            assert "deep" in watch.agent.overrule()
            assert (await watch.turn("rename e to f")).text == "Deep."
            assert (await watch.turn("rename g to h")).text == "Fast."
        routed = [(event.side, event.model, event.rule) for event in watch.of(Routed)]
        assert routed[:2] == [("fast", "m", "edit"), ("deep", "deep", "architecture")]
        assert routed[3] == ("deep", "deep", "person")
        assert [event.model for event in watch.of(UsageReported)] == ["m", "deep", "m", "deep", "m"]
        cost = watch.of(RouteCosts)[0].parts[0]
        assert (cost.side, cost.model) == ("fast", "m") and cost.input_tokens > 10 and cost.output_tokens


def edits(*values: tuple[str, str]) -> list[dict[str, Any]]:
    return [call("apply_patch", {"patch": patch("app.py", old, new)}, times=1) for old, new in values]


DRIFTS = {
    "it edited app.py 3 times": edits(("x = 1", "x = 2"), ("x = 2", "x = 3"), ("x = 3", "x = 4")),
    "it called read 3 times with the same result": [call("read", {"path": "app.py"})],
    "the checks failed 2 times": [
        *edits(("x = 1", "x = y")),
        say("Done.", times=1),
        *edits(("x = y", "x = z")),
        say("Done."),
    ],
    "its context is 90% full": [call("list", {}, times=1), say("never asked")],
}


@pytest.mark.parametrize("why", DRIFTS)
async def test_drift_hands_the_work_over(workspace: Path, why: str) -> None:
    (workspace / "app.py").write_text("x = 1\n")
    deep = [call("apply_patch", {"patch": "*** Begin Patch\n*** Delete File: app.py\n*** End Patch"}, times=1)]
    full = ["router.escalate.context_percent=90", "model_context_window=330"] if "full" in why else []
    more = ["model_auto_compact_token_limit=100000", *full]
    async with serving(DRIFTS[why], more={"deep": [*deep, say("Mended.")]}) as server:
        async with agent_on(server, workspace, *AUTO, *more) as watch:
            end = await watch.turn("rename x to y")
            assert isinstance(end, TurnDone) and end.text == "Mended."
            passed = watch.of(Routed)[-1]
            assert (passed.side, passed.rule) == ("deep", "drift")
            assert passed.why.startswith(why[:14])
            told = [item for item in watch.agent.state.history.visible() if "You take over" in str(item)]
            assert len(told) == 1 and ("It changed: app.py" in str(told)) == ("edited" in why or "checks" in why)
            assert [part.side for part in watch.of(RouteCosts)[-1].parts] == ["fast", "deep"]
            assert not (workspace / "app.py").exists()
            await watch.agent.undo()  # what both did is one turn
            assert (workspace / "app.py").read_text() == "x = 1\n"


async def test_a_fast_model_that_fails_is_relieved(workspace: Path) -> None:
    """The edit model finds no place for the edit: the deep one takes the turn."""
    only_edits = Capabilities(context=2000, chat=False, tools=False, edit=True)
    async with serving([say("x")], capabilities=only_edits) as fast, serving([say("Found it.")]) as deep:
        settings = settings_for(
            fast.base_url, workspace, f"model_providers.d.base_url={deep.base_url}", *AUTO, "router.deep=d:m"
        )
        agent = await Agent.open(settings)
        events = agent.events()
        agent.submit("rename the unfindable thing")
        seen = [event async for event in until_end(events)]
        await agent.close()
    assert isinstance(seen[-1], TurnDone) and seen[-1].text == "Found it."
    assert [event.rule for event in seen if isinstance(event, Routed)] == ["edit", "failed"]


async def test_a_long_conversation_does_not_keep_edits_from_the_fast_model(workspace: Path) -> None:
    """An edit starts from the file alone, so the conversation's length means nothing to a model that only edits."""
    (workspace / "app.py").write_text("x = 1\n")
    only_edits = Capabilities(context=2000, chat=False, tools=False, edit=True)
    long = {"steps": [{"tokens": 2500}]}
    async with serving([say("y = 1\n")], capabilities=only_edits) as fast, serving([long]) as deep:
        settings = settings_for(
            fast.base_url, workspace, f"model_providers.d.base_url={deep.base_url}", *AUTO, "router.deep=d:m"
        )
        agent = await Agent.open(settings)
        events = agent.events()
        agent.submit("design it anew")
        async for _ in until_end(events):
            pass
        assert agent.status().context_used > 2000
        await agent.wait()
        agent.submit("rename x to y in @app.py")
        seen = [event async for event in until_end(events)]
        await agent.close()
    assert [event.side for event in seen if isinstance(event, Routed)] == ["fast"]
    assert (workspace / "app.py").read_text() == "y = 1\n"


async def until_end(events: Any) -> Any:
    async for event in events:
        yield event
        if isinstance(event, TurnDone):
            return


async def test_one_key_gives_a_running_turn_to_the_other_model(workspace: Path) -> None:
    fast = [{"steps": [{"tokens": 3000}]}]
    async with serving(fast, rate=300, more={"deep": [say("Deep answer.")]}) as server:
        async with agent_on(server, workspace, *AUTO) as watch:
            watch.agent.submit("rename a to b")
            await watch.until(MessageDelta)
            watch.agent.overrule()
            end = await watch.until(TurnDone)
            assert end.text == "Deep answer."
            assert "w0000" in str(watch.agent.state.history.visible())  # what the fast one had said is handed over
            assert [event.rule for event in watch.of(Routed)] == ["edit", "person"]
            await watch.agent.wait()


def test_limits_of_zero_are_off(workspace: Path) -> None:
    off = [f"router.escalate.{name}=0" for name in ("guards", "edits", "repeats", "context_percent")]
    drift = Drift(load_settings(workspace, overrides=off))
    numbers = {"input_tokens": 99, "cached_tokens": 0, "output_tokens": 1, "tokens_per_second": 1, "ttft_seconds": 1}
    drift.watch(UsageReported(turn=1, model="m", context_used=100, context_limit=100, **numbers))
    assert drift.why == ""
