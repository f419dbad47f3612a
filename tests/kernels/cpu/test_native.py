"""The C++ runtime as the engine drives it: like the reference, and bit-equal whatever else is in a step."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import TrainedLike, row_error

from fulgur.errors import FulgurError
from fulgur.kernels import reference
from fulgur.kernels.cpu import _native, native
from fulgur.model.config import DeltaShape
from fulgur.model.pack import unpack
from fulgur.model.packed_folder import save_packed
from fulgur.model.random import RandomSource, tiny_config
from fulgur.model.weights import Weights, assemble, load

ISAS = [*_native.isas(), *(["amx_emulated"] if _native.has_emulated_amx() else [])]
SHAPES: dict[str, dict[str, Any]] = {
    "fulgur": {},
    "llama": {"n_heads": 6, "n_kv_heads": 3},
    "qwen2": {"n_heads": 4, "n_kv_heads": 1, "head_dim": 32},
    "qwen3": {"head_dim": 64, "d_model": 128, "d_ffn": 160},
    "qwen3_moe": {"n_experts": 9, "experts_per_token": 3},
    "mistral": {"window": 70},
    "ministral3": {"window": 0, "layer_kinds": ()},
    "gpt_oss": {"n_kv_heads": 1, "n_experts": 5},
    "qwen3_next": {"norm_topk": False},
    "qwen3_5": {"n_layers": 5, "delta": DeltaShape(2, 6, 16, 32, 4)},
    "qwen3_5_moe": {"delta": DeltaShape(3, 3, 32, 64, 4)},
}
TABLE = np.array([[3, 5, 1], [0, 2, 6]], np.int32)


def weights_of(family: str, bits: int = 4) -> Weights:
    return assemble(TrainedLike(tiny_config(family, tied=False, **SHAPES[family]), 7), bits=bits, group=32)


def logits_of(runtime: Any, tokens: np.ndarray, widths: list[int], sequence: int = 0) -> np.ndarray:
    """Logits of every token, fed in steps of the given widths (the last one repeats)."""
    out = np.zeros((len(tokens), runtime.vocab_size), np.float32)
    start = 0
    while start < len(tokens):
        n = min(widths[0] if len(widths) == 1 else widths.pop(0), len(tokens) - start)
        rows = np.arange(n, dtype=np.int32)
        part = np.zeros((n, runtime.vocab_size), np.float32)
        owner = np.full(n, sequence, np.int32)
        best = runtime.step(tokens[start : start + n], start + rows, owner, TABLE, rows, part)
        assert np.array_equal(best, part.argmax(axis=1))
        out[start : start + n] = part
        start += n
    return out


@cache
def reference_logits(family: str) -> np.ndarray:
    weights = weights_of(family)
    tokens = np.random.default_rng(1).integers(0, weights.config.vocab_size, 150).astype(np.int32)
    return logits_of(reference.Runtime(weights, kv_blocks=8), tokens, [150])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("family", SHAPES)
def test_agrees_with_the_reference_and_with_itself(family: str, isa: str) -> None:
    weights = weights_of(family)
    tokens = np.random.default_rng(1).integers(0, weights.config.vocab_size, 150).astype(np.int32)
    expected = reference_logits(family)
    whole = None
    for threads in (1, 2, 3):
        runtime = native.Runtime(weights, kv_blocks=8, threads=threads, isa=isa)
        wide = logits_of(runtime, tokens, [150])
        narrow = logits_of(runtime, tokens, [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 20, 1])
        other = logits_of(runtime, tokens, [13], sequence=1)
        assert np.array_equal(wide, narrow), "the bits depend on the width of the step"
        assert np.array_equal(wide, other), "the bits depend on where the sequence lies"
        whole = wide if whole is None else whole
        assert np.array_equal(whole, wide), "the bits depend on the number of threads"
        runtime.close()
    # A norm's factor that comes after the rounding to int8 moves a few activations by one step; rounding queries and
    # probabilities to bf16 moves more.
    assert whole is not None
    assert row_error(whole, expected) <= 0.01


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("family", ["fulgur", "gpt_oss", "qwen3_5_moe"])
def test_keys_and_values_of_8_bits(family: str, isa: str) -> None:
    """Near the reference, whose keys and values are bf16; the same bits whatever else is in a step."""
    weights = weights_of(family)
    tokens = np.random.default_rng(1).integers(0, weights.config.vocab_size, 150).astype(np.int32)
    whole = None
    for threads in (1, 2):
        runtime = native.Runtime(weights, kv_blocks=8, threads=threads, isa=isa, kv_bits=8)
        wide = logits_of(runtime, tokens, [150])
        assert np.array_equal(wide, logits_of(runtime, tokens, [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 20, 1], sequence=1))
        whole = wide if whole is None else whole
        assert np.array_equal(whole, wide), "the bits depend on the number of threads"
        runtime.close()
    assert whole is not None
    assert 0 < row_error(whole, reference_logits(family)) <= 0.02


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [4, 8])
def test_groups_as_wide_as_a_tile_register(bits: int, isa: str) -> None:
    config = tiny_config("qwen3", head_dim=64, d_model=128, d_ffn=192)
    weights = assemble(RandomSource(config, 7), bits=bits, group=64)
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, 100).astype(np.int32)
    expected = logits_of(reference.Runtime(weights, kv_blocks=8), tokens, [100])
    runtime = native.Runtime(weights, kv_blocks=8, threads=2, isa=isa)
    wide = logits_of(runtime, tokens, [100])
    assert np.array_equal(wide, logits_of(runtime, tokens, [1, 2, 3, 4, 5, 8, 16, 17, 20, 1]))
    assert np.linalg.norm(wide - expected) <= 0.04 * np.linalg.norm(expected)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_moe", "gpt_oss"])
def test_rows_of_several_sequences_do_not_touch_each_other(family: str) -> None:
    weights = weights_of(family, 8)
    rng = np.random.default_rng(2)
    first, second = (rng.integers(0, weights.config.vocab_size, 70).astype(np.int32) for _ in range(2))
    runtime = native.Runtime(weights, kv_blocks=8)
    alone = logits_of(runtime, first, [70]), logits_of(runtime, second, [70], sequence=1)
    tokens, positions = np.concatenate([first, second]), np.tile(np.arange(70, dtype=np.int32), 2)
    owner, rows = np.repeat(np.arange(2, dtype=np.int32), 70), np.arange(140, dtype=np.int32)
    together = np.zeros((140, runtime.vocab_size), np.float32)
    runtime.step(tokens, positions, owner, TABLE, rows, together)
    assert np.array_equal(together, np.concatenate(alone))
    some = np.array([0, 69, 70, 139], np.int32)
    part = np.zeros((4, runtime.vocab_size), np.float32)
    runtime.step(tokens, positions, owner, TABLE, some, part)
    assert np.array_equal(part, together[some])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [4, 8])
def test_a_bare_pass_reads_what_a_step_reads_and_changes_nothing(bits: int, isa: str) -> None:
    weights = weights_of("llama", bits)
    tokens = np.random.default_rng(4).integers(0, weights.config.vocab_size, 70).astype(np.int32)
    runtime = native.Runtime(weights, kv_blocks=8, threads=2, isa=isa)
    expected = logits_of(runtime, tokens, [70])
    for context in (0, 64, 10**9):
        assert runtime.scan(context, multiply=True) > 0 and runtime.scan(context, multiply=False) > 0
    assert np.array_equal(logits_of(runtime, tokens, [70]), expected)
    runtime.close()
    with pytest.raises(RuntimeError, match="closed"):
        runtime.scan(0, multiply=True)


def test_a_copied_block_serves_a_fork() -> None:
    weights = weights_of("fulgur")
    tokens = np.random.default_rng(3).integers(0, weights.config.vocab_size, 90).astype(np.int32)
    runtime = native.Runtime(weights, kv_blocks=8)
    expected = logits_of(runtime, tokens, [90])
    runtime.copy_block(3, 0)
    runtime.copy_block(5, 2)
    tail = np.zeros((10, runtime.vocab_size), np.float32)
    rows = np.arange(10, dtype=np.int32)
    runtime.step(tokens[80:], 80 + rows, np.ones(10, np.int32), TABLE, rows, tail)
    assert np.array_equal(tail, expected[80:])


def test_wrong_input_is_refused_and_nothing_breaks() -> None:
    weights = weights_of("fulgur")
    runtime = native.Runtime(weights, kv_blocks=8)
    one = np.zeros(1, np.int32)
    bad = [
        (np.array([-1], np.int32), one, one, TABLE, one),
        (np.array([999], np.int32), one, one, TABLE, one),
        (one, np.array([9999], np.int32), one, TABLE, one),
        (one, one, np.array([2], np.int32), TABLE, one),
        (one, one, one, np.array([[-1]], np.int32), one),
        (one, one, one, np.array([[8]], np.int32), one),
        (one, one, one, TABLE, np.array([1], np.int32)),
    ]
    for arguments in bad:
        with pytest.raises(IndexError):
            runtime.step(*arguments)
    with pytest.raises(IndexError):
        runtime.copy_block(0, 8)
    assert runtime.step(one, one, one, TABLE, one).shape == (1,)
    runtime.close()
    with pytest.raises(RuntimeError, match="closed"):
        runtime.step(one, one, one, TABLE, one)
    with pytest.raises(FulgurError, match="no kernels named"):
        native.Runtime(weights, kv_blocks=8, isa="sse1")


def test_amx_is_found_where_it_can_be_emulated() -> None:
    """The check by which a machine's AMX is believed runs on the emulation too: a kernel that it would refuse shows
    here, not as a silent step back to AVX-512 there."""
    if "avx512bf16" not in _native.isas():
        pytest.skip("the emulation needs AVX-512 with BF16")
    assert _native.has_emulated_amx()


@pytest.mark.parametrize("runtime_of", [native.Runtime, reference.Runtime], ids=["native", "reference"])
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
def test_drafts_that_were_wrong_leave_no_trace(family: str, runtime_of: Any) -> None:
    """Random steps, each with guesses of which any number may be right: the bits are those of single steps."""
    weights = weights_of(family)
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, weights.config.vocab_size, 120).astype(np.int32)
    runtime = runtime_of(weights, kv_blocks=8)
    expected = logits_of(runtime, tokens, [1])
    at = 0
    while at < len(tokens):
        right = min(int(rng.integers(1, 12)), len(tokens) - at)
        wrong = rng.integers(0, weights.config.vocab_size, int(rng.integers(0, 20))).astype(np.int32)
        rows = np.concatenate([tokens[at : at + right], wrong])[: len(TABLE[0]) * 64 - at]
        part = np.zeros((len(rows), runtime.vocab_size), np.float32)
        index = np.arange(len(rows), dtype=np.int32)
        runtime.step(rows, at + index, np.ones(len(rows), np.int32), TABLE, index, part)
        assert np.array_equal(part[:right], expected[at : at + right])
        at += right


@pytest.mark.parametrize("runtime_of", [native.Runtime, reference.Runtime], ids=["native", "reference"])
def test_states_are_saved_restored_and_copied(runtime_of: Any) -> None:
    weights = weights_of("qwen3_5")
    tokens = np.random.default_rng(6).integers(0, weights.config.vocab_size, 150).astype(np.int32)
    runtime = runtime_of(weights, kv_blocks=8)
    expected = logits_of(runtime, tokens, [150])
    logits_of(runtime, tokens[:100], [64, 36])
    runtime.states.save(0, 90, 1)  # some tokens back, within the log

    def go_on(sequence: int, at: int) -> np.ndarray:
        rows = np.arange(150 - at, dtype=np.int32)
        part = np.zeros((len(rows), runtime.vocab_size), np.float32)
        runtime.step(tokens[at:], at + rows, np.full(len(rows), sequence, np.int32), TABLE[[0, 0]], rows, part)
        return part

    runtime.states.copy(0, 1)
    assert np.array_equal(go_on(1, 95), expected[95:])
    logits_of(runtime, tokens[::-1].copy(), [150], sequence=1)
    runtime.states.restore(1, 1)
    assert np.array_equal(go_on(1, 90), expected[90:])
    with pytest.raises((IndexError, ValueError), match="state"):
        go_on(1, 3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "qwen3_5_moe"])
def test_a_model_of_experts_is_read_where_it_lies(family: str, bits: int, isa: str, tmp_path: Path) -> None:
    weights = weights_of(family, bits)
    save_packed(weights, tmp_path)
    mapped = load(tmp_path)
    assert all(matrix.paired and not matrix.data.flags.writeable for matrix in mapped.matrices.values())
    assert mapped.matrices["head"].tiles % 2  # the last tile has no other beside it
    for name, matrix in weights.matrices.items():
        np.testing.assert_array_equal(unpack(mapped.matrices[name]).q, unpack(matrix).q)
        np.testing.assert_array_equal(unpack(mapped.matrices[name]).scale, unpack(matrix).scale)
    tokens = np.random.default_rng(1).integers(0, weights.config.vocab_size, 60).astype(np.int32)
    found = []
    for source in (weights, mapped):
        runtime = native.Runtime(source, kv_blocks=8, threads=2, isa=isa)
        found.append(logits_of(runtime, tokens, [1, 3, 20, 36]))
        assert runtime.weight_bytes > 0
        runtime.close()
    np.testing.assert_array_equal(*found)
