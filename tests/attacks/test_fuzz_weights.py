"""One flipped bit in the files of a model: an error that names it; nothing else happens.

What Fulgur ships, packs or fetches has checksums, so no bit goes unseen. A model that comes from elsewhere has none: a
bit of a number can only change what is written. A process of its own opens the models, so that a crash would be seen.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fuzzing import enough

from fulgur.engine.load import EngineOptions, open_engine
from fulgur.errors import FulgurError
from fulgur.hub import here
from fulgur.model import checksums
from fulgur.model.config import ModelConfig
from fulgur.model.packed_folder import save_packed
from fulgur.model.random import random_model, write_hf_folder
from fulgur.model.weights import load
from fulgur.ui.cli import main
from fulgur.workspace.folders import ASSETS
from tests.engine.byte_tokenizer import EOS, VOCAB, write_tokenizer

Capture = pytest.CaptureFixture[str]
CHILD = Path(__file__).with_name("weights_child.py")
CONFIG = ModelConfig(
    family="qwen3", vocab_size=VOCAB, d_model=64, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=32, d_ffn=64,
    norm_eps=1e-6, rope_theta=10000.0, rope_scaling=None, max_context=512, tied=True, eos_ids=(EOS,), bos_id=None,
)  # fmt: skip


@pytest.mark.parametrize("sealed", [True, False], ids=["with checksums", "without"])
@pytest.mark.parametrize("kind", ["safetensors", "packed", "gguf"])
def test_a_bit_of_a_model(kind: str, sealed: bool, tmp_path: Path) -> None:
    whole, model = tmp_path / "whole", tmp_path / "model"
    write_hf_folder(whole, CONFIG, random_model(CONFIG, seed=1))
    write_tokenizer(whole)
    match kind:
        case "safetensors":
            model = whole
        case "packed":
            save_packed(load(whole, bits=4), model, companions=whole)
        case _:
            pytest.importorskip("gguf")
            from fulgur.bench.weights import write_gguf

            model = tmp_path / "gguf/model.gguf"
            model.parent.mkdir()
            write_gguf(model, CONFIG, 1, 8)
    folder = model if model.is_dir() else model.parent
    if sealed and kind != "packed":
        checksums.write(folder, [path.name for path in folder.iterdir()])
    elif not sealed:
        (folder / checksums.FILE).unlink(missing_ok=True)
    seconds = float(os.environ.get("FULGUR_FUZZ_SECONDS", "0"))
    command = [sys.executable, str(CHILD), str(model), str(whole), "200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500 + seconds, cwd=tmp_path)
    ended = done.stdout.splitlines()
    assert done.returncode == 0, f"{done.stdout[-200:]}\n{done.stderr[-3000:]}"
    wrong = [line for line in ended if not line.endswith(("ok", "refused and named"))]
    assert not wrong, wrong
    enough(len(ended), 200)
    named = sum(line.endswith("named") for line in ended)
    assert not sealed or named == len(ended), [line for line in ended if line.endswith("ok")]
    enough(named, 30)


@pytest.mark.parametrize("name", ["weights.safetensors", "config.json", "checksums.json", "../tokenizer.json"])
def test_a_bit_of_the_model_that_is_shipped(name: str, tmp_path: Path) -> None:
    """Through the door of the engine: no start without the comparison."""
    shutil.copytree(ASSETS / "30M", tmp_path / "30M")
    shutil.copyfile(ASSETS / "tokenizer.json", tmp_path / "tokenizer.json")
    options = EngineOptions(tmp_path / "30M", threads=1, kv_tokens=512)
    open_engine(options)
    file = tmp_path / "30M" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    with pytest.raises(FulgurError, match="damaged"):
        open_engine(options)


def test_large_files_are_compared_on_demand(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """`fulgur models check` reads what a start does not."""
    folder = here.root() / "m"
    write_hf_folder(folder, CONFIG, random_model(CONFIG, seed=1))
    files = [{"name": path.name, "size": path.stat().st_size} for path in folder.iterdir()]
    checksums.write(folder, [str(file["name"]) for file in files])
    (folder / here.RECORD).write_text(json.dumps({"repo": "a/b", "revision": "x", "files": files}))
    monkeypatch.setattr(checksums, "AT_START", 1000)
    assert main(["models", "check", "m"]) == 0
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-5] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert checksums.check(folder) == len(files)
    assert main(["models", "check"]) == 1
    assert "model.safetensors is damaged" in capsys.readouterr().err
    assert main(["models", "check", "nothing"]) == 2
