"""What rounding costs: held-out loss of a stage's model in floating point and in each quantised form.

    python -m lab.train quantise --run RUN --stage anneal
The figures go to RUN/STAGE/quantise.json. `export` takes a 4-bit head (which is also the embedding) where it costs less
than TOLERANCE against an 8-bit one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from fulgur.errors import FulgurError
from lab.train import checkpoint
from lab.train.model import Model
from lab.train.shapes import shape
from lab.train.streams import heldout_rows

KINDS = ("code", "fim", "edits")
TOLERANCE = 0.01  # nats per token


@torch.no_grad()
def heldout_loss(model: Model, run: Path, kind: str, device: torch.device, rows: int = 256) -> float | None:
    found = heldout_rows(run / "rows", kind, rows, device)
    if found is None:
        return None
    tokens, weights = found
    total = 0.0
    for start in range(0, len(tokens), 8):
        part = slice(start, start + 8)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            total += float(model(tokens[part, :-1], tokens[part, 1:], weights[part, 1:]))
    return total / float(weights[:, 1:].sum())


def measure(run: Path, stage: str, device: torch.device) -> dict[str, dict[str, float | None]]:
    name, weights = checkpoint.load_weights(run / stage, device)
    model = Model(shape(name)).to(device)
    model.load_state_dict(weights)
    table = {}
    for label, strength, head_bits in (("float", 0.0, 4), ("int4, head int8", 1.0, 8), ("int4, head int4", 1.0, 4)):
        model.strength.fill_(strength)
        model.head_bits = head_bits
        table[label] = {kind: heldout_loss(model, run, kind, device) for kind in KINDS}
    return table


def chosen_head_bits(table: dict[str, dict[str, float | None]]) -> int:
    wide, narrow = table["int4, head int8"], table["int4, head int4"]
    worst = max((narrow[kind] or 0.0) - (wide[kind] or 0.0) for kind in KINDS)
    return 4 if worst <= TOLERANCE else 8


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.train quantise", description="Measure what rounding the weights costs."
    )
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--stage", default="anneal")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    table = measure(args.run, args.stage, torch.device(args.device))
    if table["float"]["code"] is None:
        raise FulgurError(f"{args.run / 'rows'}: no held-out rows", hint="Run `python -m lab.train data code` first.")
    result = {"loss": table, "head_bits": chosen_head_bits(table)}
    (args.run / args.stage / "quantise.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
