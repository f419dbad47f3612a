"""A model folder on a GPU: what is needed for that, in which format, with how large a KV cache."""

from __future__ import annotations

from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.build import _nvrtc_version, architecture
from fulgur.kernels.cuda.device import Gpu, load_driver, probe
from fulgur.kernels.cuda.plan import KV_BLOCK, Plan
from fulgur.kernels.cuda.prefill_fast import bytes_per_row
from fulgur.kernels.cuda.prompts import CHUNK
from fulgur.kernels.cuda.runtime import Runtime, kv_bytes_per_token, widest
from fulgur.kernels.cuda.weights import from_folder
from fulgur.model.config import ModelConfig, read_json
from fulgur.model.folder import FolderSource

BITS = {4: "int4", 8: "fp8", 16: "bf16"}
LEAST_TOKENS = 1024
USUAL_TOKENS = 65536
SHARE = 0.9  # of the memory that is free after the weights: the GPU may serve others too
WORKSPACE = 512 << 20  # what the plain prefill needs besides unpacked matrices


def usable(index: int = 0) -> Gpu:
    """The GPU, when everything the engine needs to run on it is there; a FulgurError names the first thing missing."""
    gpu = probe(index)
    architecture(gpu.capability)
    load_driver()
    _nvrtc_version()
    return gpu


def check_folder(path: Path) -> ModelConfig:
    """The config of a folder that the GPU engine can read."""
    hint = "Give the original folder (config.json and safetensors), or run this one on the CPU."
    if not path.is_dir():
        raise FulgurError(f"{path}: the GPU engine reads model folders, not GGUF files", hint=hint)
    if (path / "config.json").exists() and "fulgur" in read_json(path / "config.json"):
        raise FulgurError(f"{path}: this folder is packed for the CPU", hint=hint)
    return ModelConfig.from_folder(path)


def stored_formats(source: FolderSource) -> tuple[str, str]:
    """What a checkpoint holds: the format of its matrices, and of its head."""
    stored = [source.raw(name)[1] for name in ("model.layers.0.self_attn.q_proj.weight", _head_of(source))]
    body, head = ("fp8" if kind == "F8_E4M3" else "bf16" for kind in stored)
    return body, head


def _head_of(source: FolderSource) -> str:
    return "model.embed_tokens.weight" if source.config.tied else "lm_head.weight"


def open_folder(
    folder: Path,
    *,
    bits: int | None = None,
    kv_tokens: int | None = None,
    driver: str | None = None,
    index: int = 0,
) -> Runtime:
    """`bits` 4, 8 or 16 are int4, fp8 and bf16; None keeps what is stored. `kv_tokens` None: as many as are of use and
    fit into the memory that is free once the weights are there. `driver` None: persistent, where the GPU can."""
    if bits is not None and bits not in BITS:
        raise FulgurError(f"{bits} bits are not supported on the GPU", hint="Choose 4, 8 or 16.")
    config = check_folder(folder)
    gpu = usable(index)
    import torch

    torch.cuda.set_device(index)
    body, head = stored_formats(FolderSource(folder)) if bits is None else (BITS[bits], BITS[bits])
    plan = widest(config, body, head, gpu)
    weights = from_folder(folder, plan, "cuda")
    torch.cuda.empty_cache()  # what packing needed
    blocks = kv_blocks(plan, kv_tokens, torch.cuda.mem_get_info()[0])
    driver = driver or ("persistent" if gpu.cooperative else "graph")
    return Runtime(weights, kv_blocks=blocks, driver=driver, gpu=gpu)


def kv_blocks(plan: Plan, tokens: int | None, free: int) -> int:
    """Blocks of the KV cache, out of `free` bytes of GPU memory."""
    config = plan.config
    size = kv_bytes_per_token(config)
    largest = max(m.copies * m.tiles * 16 * m.cols for m in plan.matrices.values())
    prefill = max(WORKSPACE + 4 * 2 * largest, CHUNK * bytes_per_row(config))
    room = int((free - prefill) * SHARE)
    fits = max(room // (size * KV_BLOCK), 0) * KV_BLOCK
    least = LEAST_TOKENS if tokens is None else tokens
    if fits < least:
        raise FulgurError(
            f"a KV cache of {least:,} tokens needs {least * size / 1e9:.1f} GB of GPU memory; after the weights "
            f"{free / 1e9:.1f} GB are free, which holds {fits:,} tokens beside what prefill needs",
            hint="Ask for fewer KV tokens (kv_tokens) or narrower weights (bits), or free memory on the GPU.",
        )
    if tokens is None:
        tokens = min(max(2 * config.max_context, USUAL_TOKENS), fits)
    elif tokens < KV_BLOCK:
        raise FulgurError(f"a KV cache of {tokens} tokens is too small", hint=f"Give at least {KV_BLOCK}.")
    return -(-tokens // KV_BLOCK)
