"""The simulator: known cases by hand, and the tables of docs/cluster.md as the command prints them."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fulgur.cluster.simulation import service
from fulgur.cluster.simulation.replica import Job, Replica
from fulgur.cluster.simulation.run import Setup, simulate
from fulgur.cluster.simulation.sessions import Turn, recorded
from fulgur.errors import UsageError
from fulgur.ui import cli
from fulgur.ui.commands import simulate as command

DOC = Path(__file__).parents[2] / "docs" / "cluster.md"
H200 = service.load("qwen3-coder-30b-a3b-fp8-h200")


def parsed(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(line.split())


def test_the_tables_in_the_docs_are_what_the_command_prints() -> None:
    text = DOC.read_text(encoding="utf-8")
    lines = re.findall(r"^fulgur simulate (.+)$", text, re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        setups = [setup for setup in command.setups(parsed(line)) if setup.users <= 3000]
        done = [(setups[-1], simulate(setups[-1]))]  # one row of each table: all take long
        for row in (*command.table(done), *(command.by_tier(done) if "--tiers" in line else ())):
            assert row in text.splitlines(), line


def test_measured_points_are_met_and_lines_go_on_between_and_beyond_them() -> None:
    assert H200.prefill_s(0, 8192) == pytest.approx(0.173, abs=0.001)
    assert H200.prefill_s(8192, 200) == pytest.approx(0.028, abs=0.002), "measured after a cached prefix"
    assert 1 / H200.step_s(1, 0) == pytest.approx(915)
    assert 32 / H200.step_s(32, 0) == pytest.approx(2536)
    assert H200.step_s(64, 0) > H200.step_s(32, 0) > H200.step_s(20, 0) > H200.step_s(8, 0)
    assert 1 / H200.step_s(1, 32_000) == pytest.approx(437, rel=0.02)
    assert set(H200.source) >= {"prefill", "decode", "context_s", "kv_tokens", "start_s"}


def test_one_turn_alone_takes_what_was_measured() -> None:
    replica = Replica(0, H200, 10_000)
    replica.submit(Job("s", 8192, 100, asked=1.0), 1.0)
    first = replica.next_end()
    assert first == pytest.approx(1.0 + 0.173, abs=0.001)
    prompt, _ = replica.end(first)
    assert prompt is not None and replica.queued == 0
    end = replica.next_end()
    assert end is not None and end - first == pytest.approx(100 * H200.step_s(1, 8192), rel=1e-6)
    assert replica.end(end)[1] is prompt and replica.kept == {"s": 8292}
    replica.submit(Job("s", 8492, 1, asked=2.0), 2.0)
    assert replica.computing is not None and replica.computing.cached == 8292
    replica.submit(Job("t", 9000, 1, asked=2.0), 2.0)
    jobs = replica.die(2.001)
    assert {job.session for job in jobs} == {"s", "t"} and not replica.up and not replica.kept and not replica.queued


def test_the_oldest_session_is_forgotten_first() -> None:
    replica = Replica(0, H200, 10_000)
    now = 0.0
    for session in "abc":
        replica.submit(Job(session, 4000, 1, asked=now), now)
        for _ in range(2):
            ends = replica.next_end()
            assert ends is not None
            now = ends
            replica.end(now)
    assert list(replica.kept) == ["b", "c"]


def test_two_runs_are_the_same_and_the_seed_matters() -> None:
    setup = Setup(H200, 400, 2, seconds=120, deaths=600)
    first, again, other = simulate(setup), simulate(setup), simulate(replace(setup, seed=1))
    assert first.ttft == again.ttft != other.ttft
    assert first.taken_up > 0


def test_recorded_turns_take_the_place_of_assumed_ones(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    turns = [{"session": name, "pause_s": 2.0, "input": 500, "output": 50} for name in "aabb"]
    file.write_text("\n".join(map(json.dumps, turns)))
    found = recorded(file)
    assert found == {"a": [Turn(2.0, 500, 50, "a")] * 2, "b": [Turn(2.0, 500, 50, "b")] * 2}
    outcome = simulate(Setup(H200, 40, 1, seconds=60, recorded=tuple(map(tuple, found.values()))))
    assert outcome.turns > 10 and outcome.tokens == 50 * outcome.turns
    file.write_text('{"session": "a", "pause_s": -1, "input": 1, "output": 1}')
    with pytest.raises(UsageError, match="line 1"):
        recorded(file)


def test_the_command_writes_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "rows.json", tmp_path / "rows.svg"
    words = ["simulate", "--users", "100", "--replicas", "1,2", "--seconds", "30", "--routing", "pinned"]
    assert cli.main([*words, "--json", str(out), "--plot", str(plot)]) == 0
    assert capsys.readouterr().out.count("| pinned |") == 2
    rows = {row["name"]: row["value"] for row in json.loads(out.read_text())["rows"]}
    assert rows["simulate.100.2.1000000.pinned.0.ttft_p50"] > 0 and "<svg" in plot.read_text()
    for wrong in (["--routing", "best"], ["--service", "abacus"], ["--users", "0"], ["--trace", str(tmp_path / "no")]):
        assert cli.main(["simulate", *wrong]) == 2


@pytest.mark.parametrize("wrong", [["--kv", "0"], ["--kv=-1"], ["--deaths=-1"], ["--slots=-1"], ["--users", "0"]])
def test_what_cannot_be_simulated_is_told(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "--users", "20", "--seconds", "5", *wrong]) == 2
    assert capsys.readouterr().err.startswith("fulgur: ")
