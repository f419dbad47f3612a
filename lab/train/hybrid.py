"""A hybrid with a drafting head (MTP), from random weights to the end of its schedule in one stage.

    python -m lab.train hybrid --run RUN --shape hybrid --minutes 6 --wait 120
Code, completions and edits are mixed from the start. The learning rate stays high for half of the time and then falls;
in that second half, weights are rounded to 4-bit groups in the forward pass.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from fulgur.errors import FulgurError
from lab.train import checkpoint
from lab.train.hybrid_model import Hybrid
from lab.train.model import hf_name
from lab.train.optim import Optimiser, decay, warm_then_stable
from lab.train.pretrain import MATRIX_RATE, VECTOR_RATE, WEIGHT_DECAY, add_rates
from lab.train.shapes import shape
from lab.train.streams import Mixture, Stream
from lab.train.trainer import Stage, add_arguments, prepare

SHARES = {"code": 0.36, "fim": 0.36, "edits": 0.28}
WARMUP = 60
STABLE = 0.45  # of the time; after that the rate falls and weights are rounded


def stage(args: argparse.Namespace) -> Stage:
    config = shape(args.shape)
    device = prepare(args, config)
    model = Hybrid(config).to(device)
    if args.compile:
        model.compile_parts()
    optimiser = Optimiser(
        model, matrix_rate=args.matrix_rate, vector_rate=args.vector_rate, weight_decay=args.weight_decay
    )
    rows = args.run / "rows"

    def begin() -> Mixture:
        if args.init is not None:
            load_pieces(model, args.init)
        return Mixture([(Stream(rows, kind, device), share) for kind, share in SHARES.items()])

    def schedule(step: int, progress: float) -> float:
        falling = max(0.0, progress - args.stable) / (1 - args.stable)
        model.strength.fill_(float(falling > 0))
        return min(warm_then_stable(step, args.warmup), decay(falling))

    return Stage("hybrid", args.shape, model, model, optimiser, rows / "code-0.done", begin, schedule, args)


def load_pieces(model: Hybrid, pieces: Path) -> None:
    """Load weights that were brought back as bf16 pieces."""
    from safetensors.torch import load_file

    from lab.train.export import join_pieces

    [label] = [file.stem for file in pieces.glob("*-bf16.json")]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        join_pieces(pieces, label, file)
        stored = load_file(file)
    model.load_state_dict({name: stored[hf_name(name)].float() for name, _ in model.named_parameters()})


def restored(run: Path, device: torch.device) -> Hybrid:
    """Load the model of the last checkpoint, rounded as it was trained."""
    name, weights = checkpoint.load_weights(run / "hybrid", device)
    model = Hybrid(shape(name)).to(device)
    model.load_state_dict(weights)
    model.strength.fill_(1.0)
    return model


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.train hybrid", description="Train a hybrid that drafts.")
    add_arguments(parser)
    add_rates(parser, MATRIX_RATE, VECTOR_RATE, WEIGHT_DECAY)
    parser.add_argument("--shape", default="hybrid")
    parser.add_argument("--warmup", type=int, default=WARMUP)
    parser.add_argument(
        "--stable", type=float, default=STABLE, help="fraction of the time before the learning rate decays"
    )
    parser.add_argument("--init", type=Path, help="continue from a folder of bf16 pieces")
    args = parser.parse_args(argv)
    if args.init is not None and not list(args.init.glob("*-bf16.json")):
        raise FulgurError(f"{args.init}: no bf16 pieces", hint="`python -m lab.train export pieces` writes them.")
    stage(args).train()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
