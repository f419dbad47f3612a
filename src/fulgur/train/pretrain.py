"""Pretraining on code with fill-in-the-middle: the warm and stable parts of the schedule.

    python -m fulgur.train.pretrain --run RUN --shape 60M --minutes 11.5
The learning rate stays high to the end: annealing brings it down.
"""

from __future__ import annotations

import argparse

from fulgur.train.model import Model
from fulgur.train.optim import Optimiser, warm_then_stable
from fulgur.train.shapes import shape
from fulgur.train.streams import Mixture, Stream
from fulgur.train.trainer import Stage, add_arguments, compiled, prepare

MATRIX_RATE = 3.5e-3
VECTOR_RATE = 3e-3
WEIGHT_DECAY = 0.3
WARMUP = 100


def stage(args: argparse.Namespace) -> Stage:
    device = prepare(args)
    model = Model(shape(args.shape)).to(device)
    optimiser = Optimiser(
        model, matrix_rate=args.matrix_rate, vector_rate=args.vector_rate, weight_decay=args.weight_decay
    )
    data = Mixture([(Stream(args.run / "rows", "code", device), 1.0)])
    return Stage(
        "pretrain",
        args.shape,
        model,
        compiled(model, args),
        optimiser,
        data,
        lambda step, _: warm_then_stable(step, args.warmup),
        args,
    )


def add_rates(parser: argparse.ArgumentParser, matrix: float, vector: float, weight_decay: float) -> None:
    parser.add_argument("--matrix-rate", type=float, default=matrix, help="Muon's learning rate")
    parser.add_argument("--vector-rate", type=float, default=vector, help="AdamW's learning rate (embedding, norms)")
    parser.add_argument("--weight-decay", type=float, default=weight_decay)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="fulgur train pretrain", description="Pretrain on code with fill-in-the-middle."
    )
    add_arguments(parser)
    add_rates(parser, MATRIX_RATE, VECTOR_RATE, WEIGHT_DECAY)
    parser.add_argument("--shape", default="60M")
    parser.add_argument("--warmup", type=int, default=WARMUP)
    stage(parser.parse_args(argv)).train()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
