"""The small model learns from the large one: it starts from the teacher's most used channels and follows its logits.

    python -m lab.train distil --run RUN --minutes 4.5 [--init src/fulgur/assets/30M]
The teacher runs in the same step, on the same rows, rounded as it ships. The loss is the Kullback-Leibler divergence
over the whole vocabulary plus some plain cross-entropy, weighted token by token as in annealing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.train import checkpoint
from lab.train.anneal import mixture
from lab.train.model import Model
from lab.train.optim import Optimiser, decay, warm_then_stable
from lab.train.pretrain import add_rates, packed_weights
from lab.train.prune import prune
from lab.train.shapes import shape
from lab.train.streams import Mixture
from lab.train.trainer import Stage, add_arguments, compiled, prepare

CROSS_ENTROPY = 0.2  # weight of the plain loss
EDIT_SHARE = 0.42
DECAY_FROM = 0.3  # the learning rate falls over the rest of the stage


class Distillation(nn.Module):
    def __init__(self, student: Model, teacher: Model) -> None:
        super().__init__()
        self.student, self.teacher = student, teacher

    def forward(self, tokens: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = functional.log_softmax(self.teacher.logits(tokens).float().flatten(0, 1), -1)
        given = functional.log_softmax(self.student.logits(tokens).float().flatten(0, 1), -1)
        divergence = (wanted.exp() * (wanted - given)).sum(-1)
        plain = functional.nll_loss(given, targets.flatten(), reduction="none")
        return (((1 - CROSS_ENTROPY) * divergence + CROSS_ENTROPY * plain) * weights.flatten()).sum()


def stage(args: argparse.Namespace) -> Stage:
    config = shape(args.teacher_shape)
    device = prepare(args, config)
    teacher = Model(config).to(device)
    teacher.strength.fill_(1.0)
    teacher.requires_grad_(False)
    student = Model(shape(args.shape)).to(device)
    student.strength.fill_(1.0)
    optimiser = Optimiser(
        student, matrix_rate=args.matrix_rate, vector_rate=args.vector_rate, weight_decay=args.weight_decay
    )

    def begin() -> Mixture:
        _, weights = checkpoint.load_weights(args.run / args.teacher, device)
        teacher.load_state_dict(weights)
        data = mixture(args.run / "rows", device, args.edit_share, seed=1)
        if args.init is not None:
            student.load_state_dict(packed_weights(args.init, student))
            return data
        # Prune a copy: the teacher itself already belongs to a compiled graph.
        copy = Model(config).to(device)
        copy.load_state_dict(weights)
        tokens, _ = data.batch(min(args.micro, 16))
        student.load_state_dict(prune(copy, student.config, tokens[:, :-1]))
        data.restore({})
        return data

    def schedule(step: int, progress: float) -> float:
        return warm_then_stable(step, args.warmup) * decay(max(0.0, progress - DECAY_FROM) / (1 - DECAY_FROM))

    return Stage(
        "distil",
        args.shape,
        student,
        compiled(Distillation(student, teacher), args),
        optimiser,
        args.run / args.teacher / checkpoint.DONE,
        begin,
        schedule,
        args,
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.train distil", description="Distil the small model from the large one."
    )
    add_arguments(parser)
    add_rates(parser, 3e-3, 2.5e-3, 0.1)
    parser.add_argument("--shape", default="30M")
    parser.add_argument("--teacher-shape", default="60M")
    parser.add_argument("--teacher", default="anneal", help="the stage whose model teaches")
    parser.add_argument("--edit-share", type=float, default=EDIT_SHARE)
    parser.add_argument("--warmup", type=int, default=30)
    parser.add_argument("--init", type=Path, help="continue from this packed folder instead of a part of the teacher")
    stage(parser.parse_args(argv)).train()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
