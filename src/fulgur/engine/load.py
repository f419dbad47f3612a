"""From a model on disk to an engine in this process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fulgur.errors import FulgurError
from fulgur.kernels.cpu.arguments import BLOCK_TOKENS
from fulgur.model.family import DELTA

if TYPE_CHECKING:
    from fulgur.engine.engine import Engine
    from fulgur.engine.runtime import Runtime
    from fulgur.model.config import ModelConfig
    from fulgur.model.weights import Weights
    from fulgur.text.tokenizer import Tokenizer

RUNTIMES = ("native", "reference")  # of the CPU
# The KV cache holds two contexts, within these bounds and a quarter of the free memory. The lower bound keeps some
# eight files of a small model warm: going back to one costs no prefill.
_DEFAULT_TOKENS = (16384, 65536)
_SNAPSHOTS = (4, 64)  # of recurrent states


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to open a model. None leaves the choice to the engine; `runtime` is that of the CPU."""

    model: Path
    bits: int | None = None
    threads: int | None = None
    kv_tokens: int | None = None
    runtime: str = "native"
    device: str = "auto"
    kv_dtype: str = "bf16"


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What was opened. `memory` is bytes of the whole process, after loading; `reason` is why this device."""

    model: str
    context: int
    kv_tokens: int
    vocab_size: int
    runtime: str
    isa: str
    threads: int
    weight_bytes: int
    kv_bytes: int
    memory: int
    pid: int
    reason: str


def open_engine(options: EngineOptions, **engine_options: Any) -> tuple[Engine, EngineInfo]:
    """Load weights and tokenizer and make an engine over the chosen runtime; further options go to `Engine`."""
    from fulgur.engine.device import bits_of, choose
    from fulgur.engine.engine import Engine
    from fulgur.engine.speculate import measure_cost
    from fulgur.model import checksums
    from fulgur.model.weights import load

    if options.runtime not in RUNTIMES:
        raise FulgurError(f"unknown runtime {options.runtime!r}", hint=f"Choose one of: {', '.join(RUNTIMES)}.")
    kv_bits = bits_of(options.kv_dtype)
    checksums.check(options.model)
    tokenizer = open_tokenizer(options.model)
    choice, drafts = choose(options), engine_options.get("max_draft") != 0
    runtime: Runtime
    if choice.gpu is not None:
        from fulgur.kernels.cuda.open import open_folder

        runtime = gpu = open_folder(
            options.model, bits=options.bits, kv_tokens=options.kv_tokens, kv_dtype=options.kv_dtype,
            index=choice.gpu, drafts=drafts,
        )  # fmt: skip
        weight_bytes, blocks, kv_bytes = gpu.weight_bytes, gpu.kv_blocks, gpu.cache.nbytes
    else:
        weights = load(options.model, bits=options.bits, drafts=drafts)
        weight_bytes, blocks = weights.nbytes, kv_blocks(weights.config, options.kv_tokens, kv_bits)
        kv_bytes = blocks * BLOCK_TOKENS * kv_bytes_per_token(weights.config, kv_bits)
        try:
            runtime = open_runtime(options.runtime, weights, blocks, options.threads, kv_bits)
        except MemoryError:
            raise FulgurError(
                f"a KV cache of {blocks * BLOCK_TOKENS:,} tokens needs {kv_bytes / 1e9:,.1f} GB, "
                "more than is available",
                hint="Set a smaller context or kv_tokens.",
            ) from None
    if "cost" not in engine_options:
        engine_options["cost"] = measure_cost(runtime)
    engine = Engine(runtime, tokenizer, **engine_options)
    info = EngineInfo(
        model=options.model.stem if options.model.is_file() else options.model.resolve().name,
        context=engine.context,
        kv_tokens=blocks * BLOCK_TOKENS,
        vocab_size=runtime.vocab_size,
        runtime=options.runtime if choice.gpu is None else "cuda",
        isa=runtime.isa,
        threads=runtime.threads,
        weight_bytes=weight_bytes,
        kv_bytes=kv_bytes,
        memory=process_memory(),
        pid=os.getpid(),
        reason=choice.reason,
    )
    return engine, info


def open_runtime(kind: str, weights: Weights, blocks: int, threads: int | None, kv_bits: int = 16) -> Runtime:
    if kind == "native":
        from fulgur.kernels.cpu.native import Runtime as NativeRuntime

        kept = snapshots(weights.config)
        return NativeRuntime(weights, kv_blocks=blocks, threads=threads, snapshots=kept, kv_bits=kv_bits)
    if kv_bits != 16:
        raise FulgurError("the reference runtime supports only kv_dtype bf16", hint="Leave kv_dtype unset.")
    from fulgur.kernels.reference import Runtime as ReferenceRuntime

    return ReferenceRuntime(weights, kv_blocks=blocks, threads=threads)


def open_tokenizer(model: Path) -> Tokenizer:
    """The tokenizer of a model folder or of a .gguf file."""
    from fulgur.model.config import naming
    from fulgur.text.tokenizer import Tokenizer

    with naming(model):
        if model.is_dir() and ((model / "tokenizer.json").exists() or not list(model.glob("*.gguf"))):
            return Tokenizer.from_folder(model)
        from fulgur.model.gguf import GgufSource
        from fulgur.model.weights import open_source

        source = open_source(model)
        assert isinstance(source, GgufSource)
        return Tokenizer.from_gguf_metadata(source.tokenizer_metadata)


def kv_bytes_per_token(config: ModelConfig, kv_bits: int = 16) -> int:
    """Bytes of the keys and values of all attention layers, the drafting head's too; in 8 bits with their scales."""
    layers = sum(kind != DELTA for kind in config.kinds) + (config.draft_vocab > 0)
    scales = 0 if kv_bits == 16 else 2 * (config.head_dim // (16 if config.head_dim % 32 else 32))
    return 2 * layers * config.n_kv_heads * (config.head_dim * kv_bits // 8 + scales)


def snapshots(config: ModelConfig) -> int:
    """How many recurrent states to keep for prefixes: as many as an eighth of the free memory holds, within reason."""
    if config.delta is None:
        return 0
    delta, layers = config.delta, sum(kind == DELTA for kind in config.kinds)
    size = 4 * layers * (delta.v_heads * delta.k_dim * delta.v_dim + (delta.taps - 1) * delta.channels)
    few, many = _SNAPSHOTS
    return int(min(max(free_memory() // 8 // max(size, 1), few), many))


def kv_blocks(config: ModelConfig, tokens: int | None, kv_bits: int = 16) -> int:
    """Blocks of the KV cache for that many tokens, or for a default that fits the machine."""
    if tokens is None:
        low, high = _DEFAULT_TOKENS
        tokens = min(max(2 * config.max_context, low), high)
        affordable = free_memory() // 4 // kv_bytes_per_token(config, kv_bits)
        tokens = max(min(tokens, affordable), 1024)
    if tokens < BLOCK_TOKENS:
        raise FulgurError(f"a KV cache of {tokens} tokens is too small", hint=f"Set it to at least {BLOCK_TOKENS}.")
    return -(-tokens // BLOCK_TOKENS)


def free_memory() -> int:
    """Bytes that are available, as far as the system says; otherwise half of all its memory."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def process_memory() -> int:
    """Resident bytes of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
