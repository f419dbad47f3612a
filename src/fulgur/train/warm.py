"""A rehearsal on random rows: every stage runs a few steps, so that compiled graphs are cached and faults show early.

python -m fulgur.train.warm pretrain --run RUN/rehearsal
python -m fulgur.train.warm rest --run RUN/rehearsal
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import numpy as np

from fulgur.train import anneal, checkpoint, distil, export, pretrain, quantise
from fulgur.train.rows import save_rows
from fulgur.train.shapes import shape


def random_rows(folder: Path, rows: int, length: int, vocabulary: int) -> None:
    rng = np.random.default_rng(0)
    for split, kind in itertools.product(("train", "heldout"), ("code", "fim", "edits")):
        tokens = rng.integers(24, vocabulary, (rows, length), dtype=np.uint16)
        save_rows(folder, f"{split}-{kind}-0-00", tokens, np.full((rows, length), 16, np.uint8))
    (folder / "code-0.done").write_text(f"{rows}\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fulgur train warm", description="Rehearse the GPU stages on random rows.")
    parser.add_argument("part", choices=("pretrain", "rest"), help="`rest` needs what `pretrain` left")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--shape", default="60M")
    parser.add_argument("--student", default="30M")
    parser.add_argument("--steps", type=int, default=12)
    args, options = parser.parse_known_args(argv)  # the rest goes to every stage
    began = time.monotonic()
    common = ["--run", str(args.run), *options]
    if args.part == "pretrain":
        config = shape(args.shape)
        random_rows(args.run / "rows", 160, config.max_context + 1, config.vocab_size)
        pretrain.main([*common, "--shape", args.shape, "--steps", str(args.steps)])
    else:
        # Annealing has pretraining's graph, already compiled: one small step without it is enough.
        anneal.main([*common, "--steps", "1", "--rows", "4", "--micro", "4", "--no-compile"])
        distil.main([*common, "--shape", args.student, "--steps", "3"])
        quantise.main(["--run", str(args.run), "--stage", "distil"])
        export.main(["pieces", "--run", str(args.run), "--stage", "distil", "--out", str(args.run / "pieces")])
        for stage in ("pretrain", "anneal", "distil"):
            (args.run / stage / checkpoint.FILE).unlink()
    print(f"rehearsed {args.part} in {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
