"""Checkpoints from their files to the device: shards, fp8 with block scales, wrong ones, and what the host holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import emulated_gpu
import numpy as np
import pytest
import torch
from plain_tokenizer import tokenizer
from safetensors.torch import save_file
from small_models import SMALL
from transformers_logits import shared_tensors

from fulgur.engine.load import EngineOptions, open_engine
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.errors import FulgurError
from fulgur.kernels.cuda import open as opening
from fulgur.kernels.cuda import weights
from fulgur.kernels.cuda.open import check_folder, stored_formats
from fulgur.kernels.cuda.pack import FP8_LIMIT
from fulgur.kernels.cuda.plan import make_plan
from fulgur.model.folder import FolderSource

CONFIG = SMALL["qwen3_moe"]
MOE = {
    "model_type": "qwen3_moe",
    "num_experts": CONFIG.n_experts,
    "num_experts_per_tok": CONFIG.experts_per_token,
    "moe_intermediate_size": CONFIG.d_expert,
    "norm_topk_prob": CONFIG.norm_topk,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp8 with a scale for each 128 x 128 block, as checkpoints ship it."""
    rows, cols = (-(-size // 128) for size in weight.shape)
    padded = torch.zeros(rows * 128, cols * 128)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    blocks = padded.reshape(rows, 128, cols, 128)
    scale = blocks.abs().amax((1, 3)) / FP8_LIMIT
    q = (blocks / scale[:, None, :, None]).reshape(rows * 128, -1)[: weight.shape[0], : weight.shape[1]]
    return q.to(torch.float8_e4m3fn).contiguous(), scale


def write(folder: Path, *, shards: int = 2, change: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
    """An fp8 checkpoint of experts in shards; norms, router, embedding and head stay bf16."""
    tensors: dict[str, torch.Tensor] = {}
    for name, value in shared_tensors(CONFIG, "bf16", "cpu", 3).items():
        if name.endswith("_proj.weight"):
            tensors[name], tensors[name + "_scale_inv"] = quantised(value.float())
        else:
            tensors[name] = value.to(torch.bfloat16)
    for name, value in (change or {}).items():
        tensors.pop(name) if value is None else tensors.update({name: value})
    names = sorted(tensors)
    placed = {}
    for i in range(shards):
        file = f"model-{i}.safetensors"
        save_file({name: tensors[name].contiguous() for name in names[i::shards]}, str(folder / file))
        placed |= dict.fromkeys(names[i::shards], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (folder / "config.json").write_text(json.dumps({**CONFIG.to_json(), **MOE}))
    return tensors


def test_fp8_shards_are_kept_to_the_bit(tmp_path: Path) -> None:
    tensors = write(tmp_path)
    assert check_folder(tmp_path) == FolderSource(tmp_path).config
    formats = stored_formats(FolderSource(tmp_path))
    assert formats == ("fp8", "bf16")
    plan = make_plan(check_folder(tmp_path), weights=formats[0], head=formats[1], ctas=4)
    found = weights.from_folder(tmp_path, plan, "cpu")
    expected = weights.assemble(plan, lambda name: (tensors[name], tensors.get(name + "_scale_inv")), "cpu")
    assert torch.equal(found.arena, expected.arena) and torch.equal(found.norms, expected.norms)
    assert torch.equal(found.embed, tensors["model.embed_tokens.weight"])
    # The packed weights are those of the checkpoint: unpacked they are q times its block's scale.
    matrix = plan.matrices["o"]
    start = plan.address(matrix, 1, 0, 0, 0)
    name = "model.layers.1.self_attn.o_proj.weight"
    unpacked = check_unpacked(found.arena[start : start + matrix.nbytes], matrix)
    scale = tensors[name + "_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
    rows, cols = tensors[name].shape
    assert torch.equal(unpacked, tensors[name].float() * scale[:rows, :cols])


def check_unpacked(data: torch.Tensor, matrix: Any) -> torch.Tensor:
    from fulgur.kernels.cuda.pack import unpack

    return unpack(data, matrix.format, matrix.rows, matrix.cols)


NAME = "model.layers.0.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({NAME + "_scale_inv": None}, "is fp8 but .*_scale_inv is missing"),
        ({NAME + "_scale_inv": torch.ones(1, 1)}, r"_scale_inv: expected shape \[1, 2\] .* found \[1, 1\]"),
        ({NAME: torch.zeros(64, 256, dtype=torch.int32)}, "type I32 is not supported"),
        ({"model.layers.1.mlp.experts.7.up_proj.weight": None}, r"experts.7.up_proj.weight \[136, 256\] is missing"),
        ({NAME: torch.full((64, 256), float("nan"))}, "layer 0, qkv: the weights contain values that are not finite"),
    ],
)
def test_a_wrong_checkpoint_says_what_is_wrong(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write(tmp_path, change=change)
    plan = make_plan(CONFIG, weights="fp8", head="bf16", ctas=4)
    with pytest.raises(FulgurError, match=message):
        weights.from_folder(tmp_path, plan, "cpu")


def test_what_the_gpu_does_not_read(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(FulgurError, match="not GGUF files"):
        check_folder(tmp_path / "model.gguf")
    (tmp_path / "config.json").write_text(json.dumps({"fulgur": {"layout": "rows16"}}))
    with pytest.raises(FulgurError, match="packed for the CPU"):
        check_folder(tmp_path)


def test_a_folder_becomes_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """All of it as on a GPU, with the emulator in its place: chosen by name, sized by its memory, generating."""
    write(tmp_path)
    tokenizer(tmp_path, CONFIG.vocab_size)
    emulated_gpu.install(monkeypatch, folder)
    monkeypatch.setattr(opening, "usable", lambda _: emulated_gpu.GPU)
    monkeypatch.setattr(opening, "from_folder", lambda path, plan, _: weights.from_folder(path, plan, "cpu"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (600 << 20, 1 << 30))
    engine, info = open_engine(EngineOptions(tmp_path, device="cuda:0"), max_draft=0, cost=None)
    assert (info.runtime, info.reason, info.context) == ("cuda", "as requested", CONFIG.max_context)
    assert info.kv_tokens == 65536 and info.kv_bytes == 65536 * 2 * 2 * 2 * 64 and "emulated" in info.isa
    engine.submit(GenerateRequest([5, 6, 7], SamplingParams(max_tokens=3)))
    events = []
    while engine.busy:
        events += engine.step()
    assert events[-1].reason == "length" and events[-1].usage.completion_tokens == 3
    engine.close()
    narrow = EngineOptions(tmp_path, device="cuda:0", kv_tokens=256, kv_dtype="fp8")
    engine, info = open_engine(narrow, max_draft=0, cost=None)
    assert info.kv_bytes == 256 * 2 * 2 * 65 and info.isa.endswith("keys and values in fp8")
    engine.close()
    older = replace(emulated_gpu.GPU, capability=(8, 0))
    monkeypatch.setattr(opening, "usable", lambda _: older)
    with pytest.raises(FulgurError, match=r"kv_dtype 'fp8' needs compute capability 8\.9"):
        open_engine(narrow, max_draft=0, cost=None)


MEMORY = """
import os, sys, threading, time
import torch
from pathlib import Path
from fulgur.kernels.cuda.plan import make_plan
from fulgur.kernels.cuda.weights import from_folder
from fulgur.model.config import ModelConfig
def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) * 1024
peak, done = 0, False
def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.001)
plan = make_plan(ModelConfig.from_folder(Path(sys.argv[1])), weights="bf16")
torch.zeros(8)
before = anonymous()
threading.Thread(target=watch, daemon=True).start()
weights = from_folder(Path(sys.argv[1]), plan, "cpu")
done = True
print(peak - before, weights.nbytes)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the kernel does not say what a process holds")
def test_the_host_holds_no_second_copy(tmp_path: Path) -> None:
    """With host memory as the device's: beyond the weights in place there is never more than a few tensors' worth."""
    config = replace(
        SMALL["llama"], vocab_size=4096, d_model=1024, n_layers=8, n_heads=16, d_ffn=2048, head_dim=64, n_kv_heads=4
    )
    generator = np.random.default_rng(1)
    from fulgur.model.tensors import tensor_shapes

    tensors = {
        name: torch.from_numpy(generator.standard_normal(shape, np.float32)).to(torch.bfloat16)
        for name, shape in tensor_shapes(config).items()
    }
    save_file(tensors, str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps({**config.to_json(), "model_type": "llama"}))
    returning = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed goes back at once and is not counted
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, env=returning, check=False
    )
    assert done.returncode == 0, done.stderr
    grown, held = map(int, done.stdout.split())
    largest = 2 * max(tensor.numel() for tensor in tensors.values())
    assert held > 18 * largest  # so that a second copy would show
    assert grown < held + 4 * largest, (grown, held, largest)
