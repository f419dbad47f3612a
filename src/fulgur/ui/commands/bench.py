"""`fulgur bench NAME`: measure this machine. Each bench is a module that is imported only when called.

A bench module has two functions:
    add_arguments(parser: argparse.ArgumentParser) -> None
    run(args: argparse.Namespace) -> fulgur.bench.report.Report
The table, `--json` and `--plot` are common to all of them and are handled here.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from fulgur.errors import UsageError
from fulgur.ui.parser import Parser, listed, need_folders

# name -> (module, one line of help)
BENCHES: dict[str, tuple[str, str]] = {
    "engine": (
        "fulgur.bench.engine",
        "decode, prefill, verify and edit speed of the CPU engine, with llama.cpp beside it",
    ),
    "kernels": ("fulgur.bench.kernels", "single operations on every instruction set this CPU has"),
    "transport": ("fulgur.bench.transport", "a warm socket beside new HTTP connections, and CPU per streamed token"),
    "steer": ("fulgur.bench.steer", "from a steer to the first token of the new direction, beside stop and resend"),
    "fairness": ("fulgur.bench.fairness", "waits of light users beside a heavy one, simulated with the server's queue"),
    "cluster": (
        "fulgur.bench.cluster",
        "CPU of a front and a replica per token, sessions that stay, steers across fronts",
    ),
    "gpu": ("fulgur.bench.gpu", "the GPU engine: first tokens beside transformers, joining requests, the host's part"),
    "variants": ("fulgur.bench.variants", "what five variants of an answer cost, in times of one"),
    "editor": ("fulgur.bench.editor", "from a key to ghost text, from a change to the next edit, in 2,000 lines"),
    "app": ("fulgur.bench.app", "the web app: its first load, and frames while two sessions stream"),
    "tui": ("fulgur.bench.tui", "start of the terminal UI and key lag while text streams"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the bench's name; the remaining arguments belong to the bench."""
    parser.epilog = listed("benches", {name: text for name, (_, text) in BENCHES.items()})
    parser.add_argument("name", choices=list(BENCHES), metavar="NAME", help="the benchmark to run")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="`fulgur bench NAME --help` lists them")


def run(args: argparse.Namespace) -> int:
    """Run one bench; the exit code is 0 whenever it could measure (a missed bar is shown, not an error)."""
    name, text = BENCHES[args.name]
    module = importlib.import_module(name)
    parser = Parser(f"fulgur bench {args.name}", description=text)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine and rows as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="plot the rows as SVG")
    module.add_arguments(parser)
    options = parser.parse_whole(args.options)
    need_folders(options.json, options.plot)
    if options.plot is not None and options.plot.suffix != ".svg":
        raise UsageError(f"{options.plot}: --plot writes SVG only", hint="Use a file name that ends in .svg.")
    report = module.run(options)
    report.print()
    if options.json is not None:
        report.write_json(options.json)
    if options.plot is not None:
        from fulgur.bench.plot import svg

        options.plot.write_text(svg(report), encoding="utf-8")
    return 0
