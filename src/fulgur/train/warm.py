"""A rehearsal on random rows: every GPU stage runs a few steps, so that the compiler's cache is warm and a fault shows early.

python -m fulgur.train.warm --run RUN/rehearsal --shape 60M --student 30M
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np

from fulgur.train import anneal, distil, export, pretrain, quantise
from fulgur.train.rows import save_rows
from fulgur.train.shapes import shape


def random_rows(folder: Path, rows: int, length: int, vocabulary: int) -> None:
    rng = np.random.default_rng(0)
    for split, kind in (("train", "code"), ("train", "edits"), ("heldout", "code"), ("heldout", "edits")):
        tokens = rng.integers(24, vocabulary, (rows, length), dtype=np.uint16)
        save_rows(folder, f"{split}-{kind}-0-00", tokens, np.full((rows, length), 16, np.uint8))
    for kind in ("code", "edits"):
        (folder / f"{kind}-0.done").write_text(f"{rows}\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fulgur train warm", description="Rehearse the GPU stages on random rows.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--shape", default="60M")
    parser.add_argument("--student", default="30M")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("options", nargs="*", help="more options for every stage, after --")
    args = parser.parse_args(argv)
    config = shape(args.shape)
    random_rows(args.run / "rows", 160, config.max_context + 1, config.vocab_size)
    began = time.monotonic()
    common = ["--run", str(args.run), *args.options]
    pretrain.main([*common, "--shape", args.shape, "--steps", str(args.steps)])
    print(f"warm: pretrain after {time.monotonic() - began:.0f} s", flush=True)
    anneal.main([*common, "--steps", "2"])
    distil.main([*common, "--shape", args.student, "--steps", str(args.steps)])
    device = ["--device", args.options[args.options.index("--device") + 1]] if "--device" in args.options else []
    quantise.main(["--run", str(args.run), *device])
    export.main(["pieces", "--run", str(args.run), "--out", str(args.run / "pieces")])
    print(f"warm: all stages after {time.monotonic() - began:.0f} s", flush=True)
    for stage in ("pretrain", "anneal", "distil"):
        os.remove(args.run / stage / "checkpoint.pt")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
