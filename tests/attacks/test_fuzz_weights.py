"""One flipped bit in the files of a model: an error that names it, or a model that answers; nothing else happens.

Weights have no checksum (a fetched model is checked when it is fetched): a bit of a number can only change what is
written. A process of its own opens the models, so that a crash would be seen.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzzing import enough

from fulgur.model.config import ModelConfig
from fulgur.model.packed_folder import save_packed
from fulgur.model.random import random_model, write_hf_folder
from fulgur.model.weights import load
from tests.engine.byte_tokenizer import EOS, VOCAB, write_tokenizer

CHILD = Path(__file__).with_name("weights_child.py")
CONFIG = ModelConfig(
    family="qwen3", vocab_size=VOCAB, d_model=64, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=32, d_ffn=64,
    norm_eps=1e-6, rope_theta=10000.0, rope_scaling=None, max_context=512, tied=True, eos_ids=(EOS,), bos_id=None,
)  # fmt: skip


@pytest.mark.parametrize("kind", ["safetensors", "packed", "gguf"])
def test_a_bit_of_a_model(kind: str, tmp_path: Path) -> None:
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

            model = tmp_path / "model.gguf"
            write_gguf(model, CONFIG, 1, 8)
    seconds = float(os.environ.get("FULGUR_FUZZ_SECONDS", "0"))
    command = [sys.executable, str(CHILD), str(model), str(whole), "200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500 + seconds, cwd=tmp_path)
    ended = done.stdout.splitlines()
    assert done.returncode == 0, f"{done.stdout[-200:]}\n{done.stderr[-3000:]}"
    wrong = [line for line in ended if not line.endswith(("ok", "refused and named"))]
    assert not wrong, wrong
    enough(len(ended), 200)
    enough(sum(line.endswith("named") for line in ended), 30)
