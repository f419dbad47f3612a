"""Pretraining on code with fill-in-the-middle: the warm and stable parts of the schedule.

    python -m lab.train pretrain --run RUN --shape 60M --minutes 11.5 [--init src/fulgur/assets/60M]
The learning rate stays high to the end: annealing brings it down.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fulgur.errors import FulgurError
from lab.train.model import Model
from lab.train.optim import Optimiser, warm_then_stable
from lab.train.shapes import shape
from lab.train.streams import Mixture, Stream
from lab.train.trainer import Stage, add_arguments, compiled, prepare

MATRIX_RATE = 3.5e-3
VECTOR_RATE = 3e-3
WEIGHT_DECAY = 0.3
WARMUP = 100


def stage(args: argparse.Namespace) -> Stage:
    config = shape(args.shape)
    device = prepare(args, config)
    model = Model(config).to(device)
    optimiser = Optimiser(
        model, matrix_rate=args.matrix_rate, vector_rate=args.vector_rate, weight_decay=args.weight_decay
    )
    rows = args.run / "rows"

    def begin() -> Mixture:
        if args.init is not None:
            model.load_state_dict(packed_weights(args.init, model))
        shares = {"code": 1 - args.fim_share - args.edit_share, "fim": args.fim_share, "edits": args.edit_share}
        return Mixture([(Stream(rows, kind, device), share) for kind, share in shares.items()])

    return Stage(
        "pretrain",
        args.shape,
        model,
        compiled(model, args),
        optimiser,
        rows / "code-0.done",
        begin,
        lambda step, _: warm_then_stable(step, args.warmup),
        args,
    )


def packed_weights(folder: Path, model: Model) -> dict[str, Tensor]:
    """Return the weights of a packed folder under this package's names, rounded to 4 bits as it was trained to be.

    A model with more layers than the folder's begins with some of them duplicated (`grow.py`).
    """
    from fulgur.model.pack import unpack
    from fulgur.model.quantise import dequantise
    from fulgur.model.tensors import matrix_plans, vector_plans
    from fulgur.model.weights import load
    from lab.train.grow import deepen
    from lab.train.model import hf_name

    packed = load(folder)
    layers, wanted = packed.config.n_layers, model.config.n_layers
    if layers > wanted or packed.config.parameters != replace(model.config, n_layers=layers).parameters:
        raise FulgurError(f"{folder} does not have the shape of the model to train")
    found: dict[str, np.ndarray] = {}  # type: ignore[type-arg]
    for name, plan in matrix_plans(packed.config).items():
        values = dequantise(unpack(packed.matrices[name]))
        for index, part in enumerate(plan.parts):
            here = np.flatnonzero(plan.part == index)
            tensor = found.setdefault(part, np.zeros((int(plan.row[here].max()) + 1, plan.cols), np.float32))
            tensor[plan.row[here]] = values[here]
    for name, parts in vector_plans(packed.config).items():
        [part] = parts  # no biases, so one vector is one tensor
        found[part] = np.array(packed.vectors[name], np.float32)
    names = [name for name, _ in model.named_parameters() if hf_name(name) in found]
    return deepen({name: torch.from_numpy(found[hf_name(name)]) for name in names}, layers, wanted)


def add_rates(parser: argparse.ArgumentParser, matrix: float, vector: float, weight_decay: float) -> None:
    parser.add_argument("--matrix-rate", type=float, default=matrix, help="Muon's learning rate")
    parser.add_argument("--vector-rate", type=float, default=vector, help="AdamW's learning rate (embedding, norms)")
    parser.add_argument("--weight-decay", type=float, default=weight_decay)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.train pretrain", description="Pretrain on code with fill-in-the-middle."
    )
    add_arguments(parser)
    add_rates(parser, MATRIX_RATE, VECTOR_RATE, WEIGHT_DECAY)
    parser.add_argument("--shape", default="60M")
    parser.add_argument("--warmup", type=int, default=WARMUP)
    parser.add_argument("--fim-share", type=float, default=0.0, help="share of rows with many completions")
    parser.add_argument("--edit-share", type=float, default=0.0, help="share of rows that are edits")
    parser.add_argument("--init", type=Path, help="continue from this packed folder; it may have fewer layers")
    stage(parser.parse_args(argv)).train()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
