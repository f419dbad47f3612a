"""The size of the toy run, its documents, and how to read its losses."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

from lab.train.documents import Document

NAMES = ["argparse", "bisect", "calendar", "configparser", "contextlib", "copy", "csv", "dataclasses", "fileinput"]
NAMES += ["fractions", "functools", "glob", "gzip", "heapq", "shlex", "shutil", "string", "tempfile", "textwrap"]
OPTIONS = ["--device", "cpu", "--no-compile", "--rows", "4", "--micro", "2"]


def standard_library(name: str) -> Document:
    path = Path(inspect.__file__).with_name(f"{name}.py")
    split = "heldout" if name in NAMES[-3:] else "train"
    package = "held" if split == "heldout" else ("python", "stdlib")[len(name) % 2]  # one for each of two shards
    return Document(package, "3", "PSF-2.0", split, f"{name}.py", path.read_text())


def losses(run: Path, stage: str) -> dict[int, float]:
    rows = (json.loads(line) for line in (run / stage / "losses.jsonl").read_text().splitlines())
    return {row["step"]: row["loss"] for row in rows if "loss" in row}
