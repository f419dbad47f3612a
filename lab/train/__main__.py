"""`python -m lab.train STAGE …`, from a checkout: each stage is a module of this folder with its own options."""

from __future__ import annotations

import argparse
import importlib
import sys

from fulgur.errors import FulgurError

STAGES = {
    "gather": "pack the listed source packages into one archive",
    "registry": "download registry packages as a round of documents",
    "shards": "split a round into archives small enough to transfer",
    "corpus": "build the corpus from installed packages and the archive",
    "tokenizer": "train the tokenizer",
    "data": "turn documents and edits into rows of tokens",
    "pretrain": "pretrain on code with fill-in-the-middle",
    "anneal": "anneal on edits, quantisation-aware",
    "hybrid": "train a hybrid with a drafting head",
    "acceptance": "measure how often a hybrid's drafting head is right",
    "drafting": "measure the speed-up from that head on a CPU or GPU",
    "distil": "distil the small model from the large one",
    "quantise": "measure what rounding the weights costs",
    "versus": "compare a run's starting model with its result",
    "export": "export weights: in pieces to transfer, or as a packed folder",
    "plot": "plot the losses of a run as SVG",
    "run": "run all of the above on one GPU machine, unattended",
    "tasks": "freeze the tasks of `fulgur eval model`",
    "compare": "compare the model before and after quantisation on these tasks",
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.train",
        description="Train the embedded models.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="stages:\n" + "\n".join(f"  {name:<11} {text}" for name, text in STAGES.items()),
    )
    parser.add_argument("stage", choices=STAGES, metavar="STAGE", help="`python -m lab.train STAGE --help` for options")
    parser.add_argument("options", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    try:
        return int(importlib.import_module(f"lab.train.{args.stage}").main(args.options))
    except FulgurError as error:
        print(f"lab.train: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
