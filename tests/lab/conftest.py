"""A toy run on the CPU: real standard-library files, a tokenizer of 512 pieces, rows of 256 tokens."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from lab.train import corpus, data  # noqa: E402
from lab.train.documents import Document, write_documents  # noqa: E402
from lab.train.tokenizer import train_tokenizer  # noqa: E402

NAMES = ["argparse", "bisect", "calendar", "configparser", "contextlib", "copy", "csv", "dataclasses", "fileinput"]
NAMES += ["fractions", "functools", "glob", "gzip", "heapq", "shlex", "shutil", "string", "tempfile", "textwrap"]
OPTIONS = ["--device", "cpu", "--no-compile", "--rows", "4", "--micro", "2"]


def standard_library(name: str) -> Document:
    path = Path(inspect.__file__).with_name(f"{name}.py")
    split = "heldout" if name in NAMES[-3:] else "train"
    return Document("held" if split == "heldout" else "python", "3", "PSF-2.0", split, f"{name}.py", path.read_text())


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RUN with corpus, tokenizer.json and rows of code and edits."""
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("toy")
    documents = [standard_library(name) for name in NAMES]
    write_documents(run / "archive.jsonl.xz", documents)
    train_tokenizer((d.text for d in documents if d.split == "train"), 512).save(str(run / "tokenizer.json"))
    corpus.main(
        [
            "--archive",
            str(run / "archive.jsonl.xz"),
            "--no-installed",
            "--out",
            str(run / "corpus"),
            "--shards",
            "2",
            "--processes",
            "1",
        ]
    )
    common = ["--corpus", str(run / "corpus"), "--out", str(run / "rows"), "--context", "256", "--processes", "1"]
    common += ["--tokenizer", str(run / "tokenizer.json")]
    data.main(["code", *common, "--passes", "2"])
    data.main(["fim", *common])
    data.main(["edits", *common])
    return run


def losses(run: Path, stage: str) -> dict[int, float]:
    rows = (json.loads(line) for line in (run / stage / "losses.jsonl").read_text().splitlines())
    return {row["step"]: row["loss"] for row in rows if "loss" in row}
