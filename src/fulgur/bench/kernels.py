"""Single kernels, timed: the cases the tests check, at the embedded model's sizes, on every instruction set here."""

from __future__ import annotations

import argparse
from time import perf_counter

from fulgur.bench.report import Report, progress
from fulgur.kernels.cases import timing_cases
from fulgur.kernels.cpu import _native

SECONDS = 0.15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--isa", metavar="NAME", help=f"only this one of {', '.join(_native.isas())}")


def run(args: argparse.Namespace) -> Report:
    """Report the best time of each case on one thread, and its multiply-adds per nanosecond."""
    report = Report("fulgur bench kernels: one thread, best of many calls")
    chosen = [args.isa] if args.isa else _native.isas()
    table = list(timing_cases())
    with progress("kernels", len(chosen) * len(table)) as begin:
        for isa in chosen:
            for case in table:
                begin(f"{case.name} on {isa}")
                best, end = float("inf"), perf_counter() + SECONDS
                while perf_counter() < end:
                    start = perf_counter()
                    case.run(isa)
                    best = min(best, perf_counter() - start)
                report.add(f"kernels.{case.name}.{isa}", best * 1e6, "µs")
                report.add(f"kernels.{case.name}.{isa}.rate", case.macs / best / 1e9, "MAC/ns")
    return report
