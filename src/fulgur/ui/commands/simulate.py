"""`fulgur simulate`: time to first token and waits of a cluster, before you buy it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fulgur.errors import UsageError
from fulgur.ui.foreign import out

if TYPE_CHECKING:
    from fulgur.bench.report import Report
    from fulgur.cluster.simulation.run import Outcome, Setup

_H200 = "qwen3-coder-30b-a3b-fp8-h200"
_COLUMNS = ("users", "replicas", "KV tokens", "routing", "deaths/h", "hit", "TTFT p50, s", "p95", "p99", "wait p95, s", "turns/s", "tok/s")  # fmt: skip  # noqa: E501


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--service", default=_H200, metavar="NAME", help="the measured service times to use (default %(default)s)"
    )
    parser.add_argument("--times", type=Path, metavar="FILE", help="your own service times, as JSON")
    parser.add_argument(
        "--users", type=_numbers, default=[1000, 2000], metavar="N[,N…]", help="people; 5%% of them are active"
    )
    parser.add_argument("--replicas", type=_numbers, default=[4], metavar="N[,N…]")
    parser.add_argument("--routing", default="hash,pinned", metavar="NAME[,…]", help="random, least, hash, pinned")
    parser.add_argument("--kv", type=_numbers, metavar="TOKENS[,…]", help="size of a replica's KV cache")
    parser.add_argument("--slots", type=int, default=0, help="answers at once on a replica (default: the engine's)")
    parser.add_argument("--tiers", action="store_true", help="a tenth of the users in flex, a tenth in priority")
    parser.add_argument("--deaths", type=_numbers, default=[0], metavar="N[,N…]", help="replicas that die in an hour")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="simulated time (default 600); the first quarter is not counted"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="recorded turns, one JSON object a line")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="plot the TTFT p95 of each row as SVG")


def run(args: argparse.Namespace) -> int:
    from fulgur.cluster.simulation.run import simulate

    if args.plot is not None and args.plot.suffix != ".svg":
        raise UsageError(f"{args.plot}: --plot writes SVG only", hint="Use a file name that ends in .svg.")
    done = [(setup, simulate(setup)) for setup in setups(args)]
    for line in table(done):
        out(line)
    if args.tiers:
        out()
        for line in by_tier(done):
            out(line)
    if args.json is not None:
        _report(done).write_json(args.json)
    if args.plot is not None:
        from fulgur.bench.plot import svg

        args.plot.write_text(svg(_report(done, only="ttft_p95")), encoding="utf-8")
    return 0


def setups(args: argparse.Namespace) -> list[Setup]:
    from fulgur.cluster.simulation import service, sessions
    from fulgur.cluster.simulation.run import ROUTINGS, Setup

    times = service.load(args.service, args.times)
    routings = args.routing.split(",")
    for name in routings:
        if name not in ROUTINGS:
            raise UsageError(f"There is no routing '{name}'", hint=f"Choose from: {', '.join(ROUTINGS)}")
    recorded = tuple(map(tuple, sessions.recorded(args.trace).values())) if args.trace else ()
    if args.seconds <= 0 or min(args.users + args.replicas + (args.kv or [1])) < 1:
        raise UsageError("Users, replicas and KV tokens must be at least 1, seconds above 0.")
    if min(args.slots, *args.deaths) < 0:
        raise UsageError("Slots and deaths must not be negative.")
    return [
        Setup(times, users, replicas, routing, kv, args.slots, args.tiers, deaths, args.seconds, args.seed, recorded)
        for users in args.users
        for replicas in args.replicas
        for kv in args.kv or [0]
        for routing in routings
        for deaths in args.deaths
    ]


def table(done: list[tuple[Setup, Outcome]]) -> list[str]:
    """Format as Markdown, for terminals and for docs/cluster.md."""
    lines = [f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
    for setup, outcome in done:
        kv = setup.kv_tokens or setup.service.kv_tokens
        cells = [f"{setup.users:,}", str(setup.replicas), f"{kv:,}", setup.routing, f"{setup.deaths:g}"]
        cells += [f"{outcome.hit:.2f}", *(f"{outcome.quantile(share):.2f}" for share in (0.5, 0.95, 0.99))]
        cells += [f"{_p95(outcome.wait):.2f}", f"{outcome.turns / outcome.seconds:.1f}"]
        lines.append(f"| {' | '.join([*cells, f'{outcome.tokens / outcome.seconds:,.0f}'])} |")
    return lines


def by_tier(done: list[tuple[Setup, Outcome]]) -> list[str]:
    lines = ["| users | replicas | tier | turns | TTFT p50, s | p95 | p99 |", "|" + "---|" * 7]
    for setup, outcome in done:
        for tier, values in sorted(outcome.ttft.items()):
            marks = " | ".join(f"{outcome.quantile(share, tier):.2f}" for share in (0.5, 0.95, 0.99))
            lines.append(f"| {setup.users:,} | {setup.replicas} | {tier} | {len(values):,} | {marks} |")
    return lines


def _report(done: list[tuple[Setup, Outcome]], only: str = "") -> Report:
    from fulgur.bench.report import Report

    report = Report("simulated")
    for setup, outcome in done:
        name = f"{setup.users}.{setup.replicas}.{setup.kv_tokens or setup.service.kv_tokens}.{setup.routing}"
        name += f".{setup.deaths:g}"
        values = {
            "ttft_p50": (outcome.quantile(0.5), "s"),
            "ttft_p95": (outcome.quantile(0.95), "s"),
            "ttft_p99": (outcome.quantile(0.99), "s"),
            "wait_p95": (_p95(outcome.wait), "s"),
            "hit": (outcome.hit, ""),
            "turns_s": (outcome.turns / outcome.seconds, "1/s"),
            "tok_s": (outcome.tokens / outcome.seconds, "tok/s"),
        }
        for what, (value, unit) in values.items():
            if not only or what == only:
                report.add(f"simulate.{name}.{what}", value, unit)
        for tier in outcome.ttft if setup.tiers and not only else ():
            report.add(f"simulate.{name}.{tier}.ttft_p95", outcome.quantile(0.95, tier), "s")
    return report


def _p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))] if values else 0.0


def _numbers(text: str) -> list[int]:
    try:
        return [int(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of whole numbers") from None
