"""A toy run on the CPU: real standard-library files, a tokenizer of 512 pieces, rows of 256 tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # toy sizes: more threads only wait for each other

from toy_run import NAMES, standard_library  # noqa: E402

from lab.train import corpus, data  # noqa: E402
from lab.train.documents import write_documents  # noqa: E402
from lab.train.tokenizer import train_tokenizer  # noqa: E402


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RUN with corpus, tokenizer.json and rows of code and edits."""
    run = tmp_path_factory.mktemp("toy")
    documents = [standard_library(name) for name in NAMES]
    archive = run / "archive.jsonl.xz"
    write_documents(archive, documents)
    train_tokenizer((d.text for d in documents if d.split == "train"), 512).save(str(run / "tokenizer.json"))
    shards = ["--out", str(run / "corpus"), "--shards", "2", "--processes", "1"]
    corpus.main(["--archive", str(archive), "--no-installed", *shards])
    common = ["--corpus", str(run / "corpus"), "--out", str(run / "rows"), "--context", "256", "--processes", "1"]
    common += ["--tokenizer", str(run / "tokenizer.json")]
    data.main(["code", *common, "--passes", "2"])
    data.main(["fim", *common])
    data.main(["edits", *common])
    return run
