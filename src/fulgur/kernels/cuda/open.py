"""Opens a model folder on a GPU: what that needs, in which format, with how large a KV cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.build import _nvrtc_version, architecture
from fulgur.kernels.cuda.device import Gpu, load_driver, probe
from fulgur.kernels.cuda.family_plan import FamilyPlan, Weights, check
from fulgur.kernels.cuda.family_runtime import SLOTS, SNAPSHOTS, FamilyRuntime
from fulgur.kernels.cuda.family_weights import assemble
from fulgur.kernels.cuda.fit import family_plan, kv_bytes_per_token, widest
from fulgur.kernels.cuda.kv_cache import check_dtype
from fulgur.kernels.cuda.plan import DECODE_FEATURES, KV_BLOCK, Plan
from fulgur.kernels.cuda.prefill_fast import bytes_per_row
from fulgur.kernels.cuda.prompts import CHUNK
from fulgur.kernels.cuda.runtime import Runtime
from fulgur.kernels.cuda.weights import from_folder
from fulgur.model.config import ModelConfig, read_json
from fulgur.model.family import DELTA
from fulgur.model.folder import FolderSource
from fulgur.model.stored import Fp8, Mxfp4, Plain

BITS = {4: "int4", 8: "fp8", 16: "bf16"}
LEAST_TOKENS = 1024
USUAL_TOKENS = 65536
SHARE = 0.9  # fraction of the memory that is free after the weights: other processes may use the GPU too
WORKSPACE = 512 << 20  # what the plain prefill needs besides unpacked matrices
FAMILY_WORKSPACE = 4 << 30  # what prefill of the general driver needs: scores, unpacked experts, rows of a chunk


def usable(index: int = 0) -> Gpu:
    """The GPU, if everything the engine needs to run on it is there; a FulgurError names the first missing thing."""
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
    config = ModelConfig.from_folder(path)
    if not config.features <= DECODE_FEATURES:
        check(config)
    return config


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
    kv_dtype: str = "bf16",
    driver: str | None = None,
    index: int = 0,
    drafts: bool = True,
) -> Runtime | FamilyRuntime:
    """`bits` 4, 8 or 16 are int4, fp8 and bf16; None keeps what is stored. `kv_tokens` None: as many as are useful and
    fit into the memory that is free after loading the weights. `driver` None: persistent, if the GPU can. Families that
    the decode kernels do not support run on the general driver; `drafts`: with their drafting head."""
    if bits is not None and bits not in BITS:
        raise FulgurError(f"{bits} bits are not supported on the GPU", hint="Choose 4, 8 or 16.")
    config = check_folder(folder)
    gpu = usable(index)
    check_dtype(kv_dtype, gpu)
    import torch

    torch.cuda.set_device(index)
    if not config.features <= DECODE_FEATURES:
        return _open_family(FolderSource(folder), bits, kv_tokens, kv_dtype, gpu, drafts)
    body, head = stored_formats(FolderSource(folder)) if bits is None else (BITS[bits], BITS[bits])
    plan = widest(config, body, head, gpu)
    weights = from_folder(folder, plan, "cuda")
    torch.cuda.empty_cache()  # what packing needed
    blocks = kv_blocks(plan, kv_tokens, kv_dtype, torch.cuda.mem_get_info()[0])
    driver = driver or ("persistent" if gpu.cooperative else "graph")
    return Runtime(weights, kv_blocks=blocks, kv_dtype=kv_dtype, driver=driver, gpu=gpu)


def _open_family(
    source: FolderSource, bits: int | None, kv_tokens: int | None, kv_dtype: str, gpu: Gpu, drafts: bool
) -> FamilyRuntime:  # fmt: skip
    import torch

    weights = family_formats(source, bits)
    config = source.config if drafts else replace(source.config, draft_vocab=0)
    plan = family_plan(config, weights, gpu)
    held = assemble(plan, source, "cuda")
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    slots, snapshots = state_slots(plan, free)
    free -= (slots + 1 + snapshots) * plan.slot_bytes
    size = plan.kv_bytes_per_token(kv_dtype)
    blocks = _blocks(size, FAMILY_WORKSPACE, kv_tokens, source.config.max_context, free)
    runtime = FamilyRuntime(held, kv_blocks=blocks, kv_dtype=kv_dtype, gpu=gpu, slots=slots, snapshots=snapshots)
    runtime.choose_alone()
    return runtime


def family_formats(source: FolderSource, bits: int | None) -> Weights:
    """The formats of a checkpoint, or those of `bits`; MXFP4 experts stay as they are unless `bits` is 16."""
    config = source.config

    def format_of(name: str) -> str:
        held = source.stored(name)
        return "fp8" if isinstance(held, Fp8) else "bf16" if isinstance(held, Plain) else "int4-64"

    layer = "model.layers.0."
    mixer = "linear_attn.out_proj" if DELTA in config.kinds[:1] else "self_attn.o_proj"
    usual = format_of(f"{layer}{mixer}.weight") if bits is None else BITS[bits]
    head = format_of("model.embed_tokens.weight" if config.tied else "lm_head.weight") if bits is None else BITS[bits]
    experts = usual
    if config.n_experts:
        name = f"{layer}mlp.experts.0.gate_proj.weight"
        if isinstance(source.stored(name), Mxfp4):
            experts = "bf16" if bits == 16 else "mxfp4"
        elif bits is None:
            experts = format_of(name)
    return Weights.named(usual, experts, head)


def state_slots(plan: FamilyPlan, free: int) -> tuple[int, int]:
    """How many recurrent states of running sequences and snapshots to hold: at most a quarter of the free memory."""
    if not plan.slot_bytes:
        return SLOTS, 0
    fit = int(free // 4 // plan.slot_bytes) - 1
    slots = min(SLOTS, max(fit // 3, 1))
    return slots, max(min(2 * SNAPSHOTS, fit - slots), 2)


def kv_blocks(plan: Plan, tokens: int | None, kv_dtype: str, free: int) -> int:
    """Blocks of the KV cache, out of `free` bytes of GPU memory."""
    config = plan.config
    size = kv_bytes_per_token(config, kv_dtype)
    largest = max(m.copies * m.tiles * 16 * m.cols for m in plan.matrices.values())
    prefill = max(WORKSPACE + 4 * 2 * largest, CHUNK * bytes_per_row(config))
    return _blocks(size, prefill, tokens, config.max_context, free)


def _blocks(size: int, prefill: int, tokens: int | None, context: int, free: int) -> int:
    """Blocks of the KV cache. `size`: bytes per token; `prefill`: bytes that prompts need besides."""
    room = int((free - prefill) * SHARE)
    fits = max(room // (size * KV_BLOCK), 0) * KV_BLOCK
    least = LEAST_TOKENS if tokens is None else tokens
    if fits < least:
        raise FulgurError(
            f"a KV cache of {least:,} tokens needs {least * size / 1e9:.1f} GB of GPU memory; after the weights "
            f"{free / 1e9:.1f} GB are free, enough for {fits:,} tokens besides what prefill needs",
            hint="Set a smaller kv_tokens or narrower weights (bits), or free memory on the GPU.",
        )
    if tokens is None:
        tokens = min(max(2 * context, USUAL_TOKENS), fits)
    elif tokens < KV_BLOCK:
        raise FulgurError(f"a KV cache of {tokens} tokens is too small", hint=f"Set it to at least {KV_BLOCK}.")
    return -(-tokens // KV_BLOCK)
