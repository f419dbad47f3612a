"""Variants: several solutions from one prefix, each checked in its own copy, ranked, one taken and undone."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from agent_world import agent_on, say, serving
from test_router import patch

from fulgur.client.connection import Connection
from fulgur.errors import FulgurError, UsageError
from fulgur.protocol.agent import FileChanged, TurnFailed, VariantsRanked
from fulgur.server import app
from fulgur.ui.cli import main

SOLUTIONS = ("x = 2", "x = 2\n+y = 3", "x = undefined_name", "x = 2")


def replies(delay: float = 0.0) -> list[dict[str, Any]]:
    """A model that solves it another way each time it is asked."""
    solutions = [
        {
            "match": "make it two",
            "times": 1,
            "steps": [{"delay": delay}, {"call": "apply_patch", "arguments": {"patch": patch("app.py", "x = 1", new)}}],
        }
        for new in SOLUTIONS
    ]
    return [say("Done.", after="function_call_output"), *solutions, say("It is two.", match="make it two"), say("ok")]


@pytest.fixture(autouse=True)
def project(workspace: Path) -> None:
    (workspace / "app.py").write_text("x = 1\n")


async def test_variants_are_ranked_with_reasons_and_one_is_taken(workspace: Path) -> None:
    async with serving(replies()) as server, agent_on(server, workspace, "features.quick_tests=false") as watch:
        await watch.turn("hello")
        await watch.agent.program("/variants 5 make it two")
        ranked = watch.of(VariantsRanked)[-1].variants
        assert (workspace / "app.py").read_text() == "x = 1\n"  # nothing is taken by itself
        untested = "tests not run: `features.quick_tests` is off"
        reasons = ["; ".join(variant.reasons) for variant in ranked]
        assert [variant.passes for variant in ranked] == [True, True, True, False, False]
        assert reasons[0] == f"parses, names exist; {untested}; +1 -1 in 1 file"
        assert reasons[1] == f"parses, names exist; {untested}; +2 -1 in 1 file"
        assert f"the same as {ranked[0].number}" in reasons[2]
        assert "fails “names exist”" in reasons[3] and "undefined_name" in reasons[3]
        assert reasons[4] == "changes nothing: It is two."
        chosen = ranked[1]
        copies = [variant.member.copy for variant in watch.agent.team.variants.ranked]
        await watch.agent.program(f"/take {chosen.number}")
        assert (workspace / "app.py").read_text() == "x = 2\ny = 3\n"
        assert watch.of(FileChanged)[-1].path == "app.py"
        assert not any(copy.folder.exists() for copy in copies)
        assert len(watch.agent.sessions()) == 1
        await watch.agent.undo()
        assert (workspace / "app.py").read_text() == "x = 1\n"
        with pytest.raises(FulgurError):
            await watch.agent.program("/take x")
        with pytest.raises(UsageError, match="/variants needs a task"):
            await watch.agent.program("/variants 3")


async def test_all_share_one_prefix_and_differ_in_their_seed(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[dict[str, Any]] = []
    original = Connection.create

    async def noted(self: Connection, body: dict[str, Any], *, lane: str | None = None) -> Any:
        bodies.append({**body, "lane": lane})
        return await original(self, body, lane=lane)

    monkeypatch.setattr(Connection, "create", noted)
    async with serving([say("ok")]) as server, agent_on(server, workspace) as watch:
        await watch.turn("hello")
        bodies.clear()
        await watch.agent.program("/variants 3 make it two")
    prefixes = {json.dumps([body["instructions"], body["input"], body["tools"]]) for body in bodies}
    assert len(bodies) == 3 and len(prefixes) == 1
    assert "hello" in prefixes.pop()  # the conversation so far is part of it
    sampled = [(body.get("temperature"), body.get("seed")) for body in bodies]
    assert sampled[0] == (None, None) and sorted(sampled[1:]) == [(0.8, 2), (0.8, 3)]
    assert all(body["lane"].startswith("crew-") for body in bodies)  # one that has ended leaves its lane to another


async def test_a_variant_of_a_file_that_changed_is_not_taken(workspace: Path) -> None:
    async with serving(replies()) as server, agent_on(server, workspace) as watch:
        await watch.agent.program("/variants 2 make it two")
        (workspace / "app.py").write_text("x = 5\n")
        await watch.agent.program("/take 1")
        failed = watch.of(TurnFailed)[-1]
        assert "app.py changed meanwhile" in failed.message
        assert (workspace / "app.py").read_text() == "x = 5\n"


def exec_flags(running: app.Running, workspace: Path) -> list[str]:
    given = [f"model_providers.t.base_url={running.base_url}", "model_provider=t", "features.quick_tests=false"]
    return ["exec", "-C", str(workspace), *(word for pair in given for word in ("-c", pair))]


@pytest.mark.parametrize("passes", [True, False])
async def test_exec_takes_the_best_that_passes(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    solutions = replies() if passes else [say("Done.", after="function_call_output"), *replies()[3:4], say("no")]
    async with serving(solutions) as server:
        command = [*exec_flags(server, workspace), "--variants", "3", "make it two"]
        code = await asyncio.to_thread(main, command)
    told = capsys.readouterr()
    assert code == (0 if passes else 1)
    assert (workspace / "app.py").read_text() == ("x = 2\n" if passes else "x = 1\n")
    assert "· variant" in told.err if passes else "no variant passes its checks" in told.err
