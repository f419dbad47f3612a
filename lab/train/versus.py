"""The model a run started from beside the one it made, both in 4 bits, on the same rows of held-out packages.

    python -m lab.train versus --run RUN [--stage anneal] [--out FILE]

For each kind of rows: the loss per token, and how many hidden texts or edit answers greedy decoding would write exactly
right. `lost` and `gained` count those that only the earlier or only the later model gets right: if they hardly differ,
neither model is better.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from fulgur.errors import FulgurError
from lab.train import checkpoint
from lab.train.data import MIDDLE_WEIGHT
from lab.train.model import Model
from lab.train.pretrain import packed_weights
from lab.train.shapes import shape
from lab.train.streams import heldout_rows

ROWS, AT_ONCE = 512, 8
# From this loss weight on, a token belongs to an answer; code has none.
ANSWERS = {"code": None, "fim": MIDDLE_WEIGHT, "edits": 1.0}


def answers(weights: npt.NDArray[np.float32], least: float) -> list[tuple[int, int]]:
    """Find where the answers of a row begin and end: runs of tokens with at least this weight."""
    inside = np.concatenate(([False], weights >= least, [False]))
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    return [(int(begin), int(end)) for begin, end in zip(edges[::2], edges[1::2], strict=True)]


@torch.no_grad()
def grade(model: Model, tokens: Tensor, weights: Tensor, least: float | None) -> tuple[float, list[bool]]:
    """Return the mean loss of these rows, and for each answer whether every token of it is the most likely one."""
    total, right = 0.0, []
    for start in range(0, len(tokens), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        targets, weight = tokens[part, 1:], weights[part, 1:]
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
            logits = model.logits(tokens[part, :-1]).float()
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        total += float((loss * weight.flatten()).sum())
        if least is not None:
            hits = (logits.argmax(-1) == targets).cpu().numpy()
            for row, values in zip(hits, weight.cpu().numpy(), strict=True):
                right += [bool(row[begin:end].all()) for begin, end in answers(values, least)]
    return total / float(weights[:, 1:].sum().clamp_min(1.0)), right


def versus(run: Path, stage: str, device: torch.device) -> dict[str, dict[str, float]]:
    name, trained = checkpoint.load_weights(run / stage, device)
    models = []
    for weights in (None, trained):
        model = Model(shape(name)).to(device)
        model.load_state_dict(packed_weights(run / "init", model) if weights is None else weights)
        model.strength.fill_(1.0)
        models.append(model.eval())
    table = {}
    for kind, least in ANSWERS.items():
        rows = heldout_rows(run / "rows", kind, ROWS, device)
        if rows is None:
            continue
        (before, old), (after, new) = (grade(model, *rows, least) for model in models)
        table[kind] = {"loss_before": round(before, 4), "loss_after": round(after, 4)}
        if old:
            table[kind] |= {
                "answers": len(old),
                "right_before": sum(old),
                "right_after": sum(new),
                "lost": sum(a and not b for a, b in zip(old, new, strict=True)),
                "gained": sum(b and not a for a, b in zip(old, new, strict=True)),
            }
    return table


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.train versus", description="Compare a run's starting model with its result."
    )
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--stage", default="anneal")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="write the table there too")
    args = parser.parse_args(argv)
    if not (args.run / "init").exists():
        raise FulgurError(
            f"{args.run}: the run did not start from an earlier model", hint="Give one with `run --init`."
        )
    table = versus(args.run, args.stage, torch.device(args.device))
    if args.out:
        args.out.write_text(json.dumps(table, indent=1) + "\n")
    print(json.dumps(table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
