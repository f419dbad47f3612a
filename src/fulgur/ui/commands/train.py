"""`fulgur train STAGE …`: each stage is a module of `lab.train` with its own options."""

from __future__ import annotations

import argparse
import importlib

STAGES = {
    "gather": "source packages of the list to one archive",
    "corpus": "installed packages and the archive to the corpus",
    "tokenizer": "train the tokenizer",
    "data": "documents and edits to rows of tokens",
    "pretrain": "pretrain on code with fill-in-the-middle",
    "anneal": "anneal on edits, quantisation-aware",
    "distil": "distil the small model from the large one",
    "quantise": "measure what rounding costs",
    "export": "pieces to carry, and the packed folder",
    "plot": "the losses of a run as SVG",
    "evaluate": "grade the shipped models on held-out packages",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "stages:\n" + "\n".join(f"  {name:<10} {text}" for name, text in STAGES.items())
    parser.add_argument(
        "stage",
        choices=STAGES,
        metavar="STAGE",
        help="one of the stages below; `fulgur train STAGE --help` shows its options",
    )
    parser.add_argument("options", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    return int(importlib.import_module(f"lab.train.{args.stage}").main(args.options))
