"""Annealing on edits and fill-in-the-middle, quantisation-aware: the learning rate falls to almost nothing.

    python -m lab.train anneal --run RUN --minutes 7
Weights are rounded to 4-bit groups in the forward pass from the first step on; gradients go straight through. Momentum
is carried over from pretraining.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from fulgur.errors import FulgurError
from lab.train import checkpoint
from lab.train.model import Model
from lab.train.optim import Optimiser, decay
from lab.train.pretrain import MATRIX_RATE, VECTOR_RATE, WEIGHT_DECAY, add_rates
from lab.train.shapes import shape
from lab.train.streams import Mixture, Stream
from lab.train.trainer import Stage, add_arguments, compiled, prepare

EDIT_SHARE = 0.36
FIM_SHARE = 0.8  # of the rows that are not edits: dense fill-in-the-middle; the rest are code as in pretraining
# Every token of a code row counts, but only the answers of an edit row. Halved, a code row still weighs about two of
# those.
CODE_EMPHASIS = 0.5


def mixture(rows: Path, device: torch.device, edit_share: float, *, seed: int = 0) -> Mixture:
    """Build the mixture of rows for annealing and distillation."""
    code, fim, edits = (Stream(rows, kind, device, seed=seed) for kind in ("code", "fim", "edits"))
    other = 1 - edit_share
    shares = [(code, other * (1 - FIM_SHARE)), (fim, other * FIM_SHARE), (edits, edit_share)]
    return Mixture(shares, {"code": CODE_EMPHASIS})


def stage(args: argparse.Namespace) -> Stage:
    config = shape(args.shape)
    device = prepare(args, config)
    model = Model(config).to(device)
    model.strength.fill_(1.0)
    optimiser = Optimiser(
        model, matrix_rate=args.matrix_rate, vector_rate=args.vector_rate, weight_decay=args.weight_decay
    )

    def begin() -> Mixture:
        before = checkpoint.load(args.run / args.start, device)
        if before is None:
            raise FulgurError(
                f"{args.run / args.start}: no checkpoint to anneal", hint="Run `python -m lab.train pretrain` first."
            )
        model.load_state_dict(before["model"])
        optimiser.restore(before["optimiser"])
        data = mixture(args.run / "rows", device, args.edit_share)
        data.restore(before["data"])  # the rows continue where pretraining stopped
        return data

    return Stage(
        "anneal",
        args.shape,
        model,
        compiled(model, args),
        optimiser,
        args.run / args.start / checkpoint.DONE,
        begin,
        lambda _, progress: decay(progress),
        args,
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.train anneal", description="Anneal on edits, quantisation-aware."
    )
    add_arguments(parser)
    add_rates(parser, MATRIX_RATE, VECTOR_RATE, WEIGHT_DECAY)
    parser.add_argument("--shape", default="60M")
    parser.add_argument("--start", default="pretrain", help="the stage to continue from")
    parser.add_argument("--edit-share", type=float, default=EDIT_SHARE, help="share of rows that are edits")
    stage(parser.parse_args(argv)).train()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
