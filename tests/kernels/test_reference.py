"""The reference runtime: its arithmetic written out once more with plain loops, and its independence of the batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulgur.errors import FulgurError
from fulgur.kernels.reference import FloatModel, Runtime, _Matrix, quantise_activations
from fulgur.model.pack import pack, unpack
from fulgur.model.quantise import dequantise, quantise
from fulgur.model.random import MemorySource, RandomSource, random_model, tiny_config
from fulgur.model.tensors import matrix_plans
from fulgur.model.weights import Weights, assemble

LENGTH = 80
TOKENS = np.random.default_rng(1).integers(0, 301, LENGTH)


@pytest.fixture(scope="module", params=[("fulgur", 8), ("qwen2", 4)], ids=lambda p: f"{p[0]}-int{p[1]}")
def weights(request: pytest.FixtureRequest) -> Weights:
    family, bits = request.param
    return assemble(RandomSource(tiny_config(family), 0), bits=bits)


@pytest.fixture(scope="module")
def alone(weights: Weights) -> np.ndarray:
    """Logits of TOKENS, one row a step: what every other way of running them must give, bit by bit."""
    runtime = Runtime(weights, kv_blocks=2)
    logits = np.empty((LENGTH, 301), np.float32)
    for i, token in enumerate(TOKENS):
        runtime.step([token], [i], [0], [[0, 1]], [0], logits[i : i + 1])
    return logits


@pytest.mark.parametrize("bits", [4, 8])
def test_matrix_product_by_hand(bits: int) -> None:
    rng = np.random.default_rng(0)
    matrix = quantise(rng.standard_normal((5, 96), np.float32), bits, 32)
    x = rng.standard_normal((3, 96), np.float32)
    x[1, 32:64] = 0
    got = _Matrix.open(pack(matrix))(x)
    for r in range(3):
        for row in range(5):
            total = np.float32(0)
            for g in range(3):
                part = x[r, g * 32 : g * 32 + 32]
                peak = np.abs(part).max()
                q = [int(np.rint(v * (np.float32(127) / peak))) if peak else 0 for v in part]
                dot = sum(a * int(b) for a, b in zip(q, matrix.q[row, g * 32 : g * 32 + 32], strict=True))
                total += np.float32(dot) * (np.float32(matrix.scale[row, g]) * (peak / np.float32(127)))
            assert got[r, row] == total


def test_activations_use_the_whole_range() -> None:
    q, scale = quantise_activations(np.array([[1.0, -2.0, 0.5, 2.0]], np.float32), 4)
    assert q[0, 0].tolist() == [64, -127, 32, 127] and scale[0, 0] == np.float32(2 / 127)


def test_quantised_model_is_near_the_float_model_of_its_own_weights(weights: Weights, alone: np.ndarray) -> None:
    """Only int8 activations and the bf16 cache are left as error."""
    config, tensors = weights.config, random_model(weights.config, 0)
    for name, plan in matrix_plans(config).items():
        value = dequantise(unpack(weights.matrices[name]))
        for i, part in enumerate(plan.parts):
            tensors[part][plan.row[plan.part == i]] = value[plan.part == i]
    if weights.embed is not None:
        tensors["model.embed_tokens.weight"] = weights.embed.astype(np.float32)
    expected = FloatModel(MemorySource(config, tensors)).logits(TOKENS)
    assert np.sqrt(np.mean((alone - expected) ** 2)) < 0.03 * expected.std()


@settings(deadline=None, max_examples=15)
@given(cuts=st.lists(st.integers(1, LENGTH - 1), max_size=4), seed=st.integers(0, 1000))
def test_any_split_into_steps_gives_the_same_bits(
    weights: Weights, alone: np.ndarray, cuts: list[int], seed: int
) -> None:
    """The same text in pieces of any size, next to another sequence, in shuffled KV blocks."""
    rng = np.random.default_rng(seed)
    runtime = Runtime(weights, kv_blocks=8)
    tables = rng.permutation(8).reshape(2, 4).astype(np.int32)
    other = rng.integers(0, 301, LENGTH + 4)
    done = 0
    for end in [*sorted(set(cuts)), LENGTH]:
        n, m = end - done, int(rng.integers(0, 4))
        tokens = np.concatenate((other[done : done + m], TOKENS[done:end]))
        positions = np.concatenate((np.arange(m), np.arange(done, end)))
        sequences = np.concatenate((np.full(m, 1), np.zeros(n)))
        logits = np.empty((n, 301), np.float32)
        best = runtime.step(tokens, positions, sequences, tables, np.arange(m, m + n), logits)
        np.testing.assert_array_equal(logits, alone[done:end])
        np.testing.assert_array_equal(best, alone[done:end].argmax(axis=1))
        done = end


def test_a_copied_block_continues_like_the_original(weights: Weights, alone: np.ndarray) -> None:
    runtime = Runtime(weights, kv_blocks=3)
    runtime.step(TOKENS[:40], range(40), np.zeros(40), [[0]], [])
    runtime.copy_block(0, 2)
    runtime.step([5], [40], [0], [[0]], [])  # the original goes another way
    logits = np.empty((1, 301), np.float32)
    runtime.step(TOKENS[40:41], [40], [0], [[2]], [0], logits)
    np.testing.assert_array_equal(logits[0], alone[40])


def test_overwritten_positions_are_forgotten(weights: Weights, alone: np.ndarray) -> None:
    """Rejected drafts leave nothing behind: their slots are written again."""
    runtime = Runtime(weights, kv_blocks=2)
    runtime.step(TOKENS[:30], range(30), np.zeros(30), [[0, 1]], [])
    runtime.step([9] * 20, range(30, 50), np.zeros(20), [[0, 1]], range(20))
    logits = np.empty((1, 301), np.float32)
    runtime.step(TOKENS[30:31], [30], [0], [[0, 1]], [0], logits)
    np.testing.assert_array_equal(logits[0], alone[30])


def test_lowest_index_wins_ties() -> None:
    config = tiny_config(vocab_size=40)
    weights = assemble(RandomSource(config, 0), bits=8)
    weights.matrices["head"].data[:] = weights.matrices["head"].data.reshape(3, -1)[:1].repeat(3, axis=0).reshape(-1)
    # Rows 0-15, 16-31 and 32-39 are now the same: every maximum comes at least twice.
    logits = np.empty((1, 40), np.float32)
    best = Runtime(weights, kv_blocks=1).step([3], [0], [0], [[0]], [0], logits)
    assert (logits[0] == logits[0, best[0]]).sum() >= 2 and best[0] < 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [301]}, "vocabulary of 301"),
        ({"positions": [128]}, "context of 128"),
        ({"sequences": [1]}, "no block table for sequence 1"),
        ({"tables": [[-1]]}, "has no KV block"),
        ({"positions": [64]}, "has no KV block"),
        ({"tables": [[2]]}, "has no KV block"),
        ({"logit_rows": [1]}, "logit row 1 is outside the step of 1 rows"),
        ({"tokens": [1, 2], "positions": [0, 2], "sequences": [0, 0]}, "consecutive positions"),
        ({"tokens": []}, "0 tokens"),
    ],
)
def test_wrong_steps_are_refused(change: dict[str, list], message: str) -> None:
    runtime = Runtime(assemble(RandomSource(tiny_config(), 0), bits=8), kv_blocks=2)
    step = {"tokens": [1], "positions": [0], "sequences": [0], "tables": [[0]], "logit_rows": [0]}
    with pytest.raises(ValueError, match=message):
        runtime.step(**{**step, **change})


def test_options_it_does_not_have_are_refused(weights: Weights) -> None:
    with pytest.raises(FulgurError, match="one thread"):
        Runtime(weights, kv_blocks=1, threads=2)
    with pytest.raises(FulgurError, match="instruction set"):
        Runtime(weights, kv_blocks=1, isa="amx")
