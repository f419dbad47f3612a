"""Random weights for a bench: generated ahead of their use by threads, and written as a packed folder and as GGUF."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fulgur.bench.report import cores
from fulgur.model.config import ModelConfig
from fulgur.model.gguf_names import gguf_name
from fulgur.model.random import RandomSource
from fulgur.model.tensors import tensor_shapes

QUANT = {8: "Q8_0", 4: "Q4_0"}
_AHEAD = 4  # tensors in progress or kept: a fused matrix alternates between two or three of them
_CHUNK = 1 << 20  # elements quantised at a time


class AheadSource(RandomSource):
    """The tensors of `RandomSource`; while one is used, the next ones are generated. For one reader, in the model's
    order."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__(config, seed)
        self._names = list(tensor_shapes(config))
        self._pool = ThreadPoolExecutor(cores())
        self._made: dict[str, Future[npt.NDArray[np.float32]]] = {}

    def __enter__(self) -> AheadSource:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        at = self._names.index(name)
        near = self._names[max(at - _AHEAD, 0) : at + _AHEAD]
        self._made = {other: made for other, made in self._made.items() if other in near}
        for other in self._names[at : at + _AHEAD]:
            if other not in self._made:
                self._made[other] = self._pool.submit(RandomSource(self._config, self._seed).tensor, other)
        return self._made[name].result()


def new_writer(path: Path, architecture: str, config: ModelConfig) -> Any:
    """Create a `gguf.GGUFWriter` with the model's numbers and no vocabulary."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_context)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.n_layers)
    writer.add_feed_forward_length(config.d_ffn)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config.vocab_size)
    if config.n_experts:
        writer.add_expert_count(config.n_experts)
        writer.add_expert_used_count(config.experts_per_token)
        writer.add_expert_feed_forward_length(config.d_expert)
    if config.d_shared:
        writer.add_expert_shared_feed_forward_length(config.d_shared)
    if config.window:
        writer.add_sliding_window(config.window)
    if config.delta is not None:
        writer.add_rope_dimension_count(config.rotated)
        half = config.rotated // 2  # for text, the three positions of an image's RoPE are equal
        writer.add_rope_dimension_sections([half - 2 * (half // 3), half // 3, half // 3, 0])
        writer.add_ssm_conv_kernel(config.delta.taps)
        writer.add_ssm_state_size(config.delta.k_dim)
        writer.add_ssm_group_count(config.delta.k_heads)
        writer.add_ssm_time_step_rank(config.delta.v_heads)
        writer.add_ssm_inner_size(config.delta.values)
        writer.add_uint32(f"{architecture}.full_attention_interval", 4)
    return writer


def write_gguf(path: Path, config: ModelConfig, seed: int, bits: int) -> None:
    """Write the random model of this seed, every matrix as Q8_0 or Q4_0 blocks; to llama.cpp our own family is
    Qwen3."""
    import gguf

    kind = gguf.GGMLQuantizationType[QUANT[bits]]
    writer = new_writer(path, "qwen3" if config.family == "fulgur" else config.family, config)
    with AheadSource(config, seed) as source, ThreadPoolExecutor(cores()) as pool:
        for name, shape in tensor_shapes(config).items():
            value = source.tensor(name)
            if len(shape) == 1:
                writer.add_tensor(gguf_name(name), value)
            else:
                writer.add_tensor(gguf_name(name), _blocks(value, bits, pool), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _blocks(value: npt.NDArray[np.float32], bits: int, pool: ThreadPoolExecutor) -> npt.NDArray[np.uint8]:
    """Quantise a matrix with the peer's own code, in large pieces (its own loop takes 16 rows)."""
    import gguf

    kind = getattr(gguf.quants, QUANT[bits])
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[QUANT[bits]]][0]
    blocks = value.reshape(-1, block)
    step = _CHUNK // block
    parts = pool.map(kind.quantize_blocks, (blocks[at : at + step] for at in range(0, len(blocks), step)))
    return np.concatenate(list(parts)).reshape(len(value), -1)
