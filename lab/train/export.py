"""A trained stage -> pieces small enough to carry -> the packed folder that ships in the package.

    python -m lab.train export pieces --run RUN --stage anneal --out PIECES [--precision bf16]
    python -m lab.train export pack PIECES --label 60M-quantised --out FOLDER
`quantised` pieces hold the 4-bit groups exactly as the engine reads them, and the embedding in fp16 so that its
precision can still be chosen. `bf16` pieces hold the whole model, for comparison.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError
from fulgur.model.config import ModelConfig
from fulgur.model.config_json import config_from_json
from fulgur.model.quantise import QuantMatrix, dequantise, quantise
from fulgur.workspace.folders import TOKENIZER

PIECE = 15 << 20
GROUP = 64
PLAIN = ("a_proj", "b_proj")  # small matrices that stay in bf16, since they decide how fast a delta net forgets


def nibbles(q: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Pack two 4-bit values per byte, the even column low."""
    shifted = (q + 8).astype(np.uint8)
    return np.bitwise_or(shifted[:, 0::2], shifted[:, 1::2] << 4).astype(np.uint8)


def from_nibbles(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int8]:
    q = np.empty((data.shape[0], data.shape[1] * 2), np.int8)
    q[:, 0::2] = (data & 15).astype(np.int8) - 8
    q[:, 1::2] = (data >> 4).astype(np.int8) - 8
    return q


def write_pieces(file: Path, out: Path, label: str, description: dict[str, Any]) -> list[Path]:
    """Cut a file into LABEL.00, LABEL.01 … and describe them in LABEL.json."""
    out.mkdir(parents=True, exist_ok=True)
    data = file.read_bytes()
    parts = []
    for index, start in enumerate(range(0, len(data), PIECE)):
        part = out / f"{label}.{index:02d}"
        part.write_bytes(data[start : start + PIECE])
        parts.append(part)
    description |= {
        "pieces": [part.name for part in parts],
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
    }
    (out / f"{label}.json").write_text(json.dumps(description, indent=1) + "\n")
    return parts


def join_pieces(folder: Path, label: str, target: Path) -> dict[str, Any]:
    file = folder / f"{label}.json"
    if not file.exists():
        raise FulgurError(f"{file}: no such model", hint="Give the folder and label that `export pieces` wrote.")
    description = json.loads(file.read_text())
    missing = [name for name in description["pieces"] if not (folder / name).exists()]
    if missing:
        raise FulgurError(f"{folder}: {', '.join(missing)} of {label} are missing")
    data = b"".join((folder / name).read_bytes() for name in description["pieces"])
    if hashlib.sha256(data).hexdigest() != description["sha256"]:
        raise FulgurError(f"{folder}: the pieces of {label} do not give the file they were cut from")
    target.write_bytes(data)
    return dict(description)


def make_pieces(run: Path, stage: str, out: Path, precision: str) -> list[Path]:
    """Read a stage's checkpoint and write its pieces; needs torch."""
    import torch
    from safetensors.torch import save_file

    from lab.train import checkpoint
    from lab.train.model import hf_name
    from lab.train.shapes import shape

    name, weights = checkpoint.load_weights(run / stage)
    tensors: dict[str, torch.Tensor] = {}
    for key, value in weights.items():
        full = hf_name(key)
        if value.ndim != 2:
            tensors[full] = value.float().contiguous()
        elif precision == "bf16" or key.endswith(PLAIN):
            tensors[full] = value.bfloat16().contiguous()
        elif key == "embed":
            tensors[full] = value.half().contiguous()
        else:
            matrix = quantise(value.float().numpy(), 4, GROUP, full)
            tensors[full + ".q4"] = torch.from_numpy(nibbles(matrix.q))
            tensors[full + ".scale"] = torch.from_numpy(matrix.scale)
    measured = run / stage / "quantise.json"
    description = {
        "shape": name,
        "stage": stage,
        "precision": precision,
        "fim": "suffix-first",
        "config": shape(name).to_json(),
        "quantise": json.loads(measured.read_text()) if measured.exists() else None,
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        save_file(tensors, str(file))
        return write_pieces(file, out, f"{name}-{precision}", description)


def float_folder(pieces: Path, label: str, folder: Path) -> dict[str, Any]:
    """Join pieces into a folder of float weights under Hugging Face's names, as `fulgur.model.load` reads it."""
    from safetensors.numpy import load_file, save_file

    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "model.safetensors"
    description = join_pieces(pieces, label, target)
    (folder / "config.json").write_text(json.dumps(description["config"], indent=1) + "\n")
    if description["precision"] == "quantised":
        stored = load_file(str(target))
        tensors: dict[str, npt.NDArray[Any]] = {}
        for name, value in stored.items():
            if name.endswith(".q4"):
                base = name.removesuffix(".q4")
                q, scale = from_nibbles(value), stored[base + ".scale"]
                tensors[base] = dequantise(QuantMatrix(4, GROUP, q.shape[0], q.shape[1], q, scale))
            elif not name.endswith(".scale"):
                tensors[name] = value.astype(np.float32)
        save_file(tensors, str(target))
    return description


def pack(pieces: Path, label: str, out: Path, tokenizer: Path, head_bits: int | None) -> ModelConfig:
    """Make a packed folder from pieces. 4-bit groups that were rounded once round to themselves, so nothing is lost."""
    from fulgur.model.packed_folder import remember, save_packed
    from fulgur.model.weights import load

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        description = float_folder(pieces, label, folder)
        if head_bits is None:
            head_bits = (description["quantise"] or {"head_bits": 8})["head_bits"]
        weights = load(folder, bits=4, group=GROUP, head_bits=head_bits)
        shared = tokenizer.resolve() == out.resolve().parent / "tokenizer.json"
        save_packed(weights, out, companions=None if shared else tokenizer.parent)
        file = out / "config.json"
        config = json.loads(file.read_text())
        config["fulgur"]["fim"] = description.get("fim", "prefix-first")
        if shared:
            config["fulgur"]["tokenizer"] = "../tokenizer.json"
        file.write_text(json.dumps(config, indent=2) + "\n")
        remember(out)
    return config_from_json(description["config"], out / "config.json")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.train export", description="Export a trained model.")
    actions = parser.add_subparsers(dest="action", required=True)
    cut = actions.add_parser("pieces", help="write a stage's weights in pieces of at most 15 MiB")
    cut.add_argument("--run", type=Path, required=True)
    cut.add_argument("--stage", default="anneal")
    cut.add_argument("--out", type=Path, required=True)
    cut.add_argument("--precision", choices=("quantised", "bf16"), default="quantised")
    join = actions.add_parser("pack", help="pieces to the packed folder that the engine maps")
    join.add_argument("pieces", type=Path)
    join.add_argument("--label", required=True, help="for example 60M-quantised")
    join.add_argument("--out", type=Path, required=True)
    join.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    join.add_argument(
        "--head-bits", type=int, choices=(4, 8), default=None, help="default: as measured on the training machine"
    )
    floats = actions.add_parser("float", help="pieces to a folder of float weights")
    floats.add_argument("pieces", type=Path)
    floats.add_argument("--label", required=True)
    floats.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    if args.action == "pieces":
        for part in make_pieces(args.run, args.stage, args.out, args.precision):
            print(f"{part} {part.stat().st_size}")
    elif args.action == "pack":
        config = pack(args.pieces, args.label, args.out, args.tokenizer, args.head_bits)
        size = sum(path.stat().st_size for path in args.out.iterdir())
        print(f"{args.out}: {config.parameters / 1e6:.1f} M parameters, {size / 1e6:.1f} MB")
    else:
        float_folder(args.pieces, args.label, args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
