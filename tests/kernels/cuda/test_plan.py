"""The plan covers all work exactly once, stays within the limits of the GPU and overwrites nothing too early."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from interpreter import early_overwrites, segments, span, split_length
from small_models import SMALL

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.build import SOURCES
from fulgur.kernels.cuda.formats import FORMATS, GENERAL_ONLY, WARPS
from fulgur.kernels.cuda.header import layout
from fulgur.kernels.cuda.plan import Plan, make_plan
from fulgur.kernels.cuda.shapes import SHAPES
from fulgur.model.config import ModelConfig

ALL = {**SHAPES, **SMALL}
Units = Callable[[int], list[tuple[int, int]]]


@pytest.fixture(scope="module")
def units_of(tmp_path_factory: pytest.TempPathFactory) -> Units:
    """The units of each of 132 CTAs, as the CUDA sources find them."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler (g++ or clang++)")
    folder = tmp_path_factory.mktemp("units")
    text = "#include <algorithm>\n#define CTAS 132\n#define __device__\n#define __forceinline__ inline\n"
    text += "using std::max, std::min;\n"
    text += (SOURCES / "matrix.cuh").read_text(encoding="utf-8")
    text += 'extern "C" int first(int cta, int units) { return first_unit(cta, units); }\n'
    (folder / "units.cpp").write_text(text, encoding="utf-8")
    subprocess.run([compiler, "-std=c++17", "-shared", "-fPIC", "units.cpp", "-o", "units.so"], cwd=folder, check=True)
    first = ctypes.CDLL(str(folder / "units.so")).first
    return lambda units: [(first(cta, units), first(cta + 1, units)) for cta in range(132)]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("rows", [1, 5, 8])
def test_every_block_is_read_once(name: str, rows: int, units_of: Units) -> None:
    plan = make_plan(ALL[name], weights="fp8")
    for matrix in plan.matrices.values():
        edges = units_of(matrix.units(rows))
        assert edges[0][0] == 0 and edges[-1][1] == matrix.units(rows)
        assert all(a[1] == b[0] for a, b in pairwise(edges))
        slices = [matrix.slice(s, w) for s in range(matrix.split) for w in range(matrix.kw)]
        assert slices[0][0] == 0 and slices[-1][1] == matrix.blocks
        assert all(a[1] == b[0] for a, b in pairwise(slices))
        assert WARPS % matrix.kw == 0


def test_ctas_that_attend_or_route_have_no_extra_unit(units_of: Units) -> None:
    plan = make_plan(SHAPES["qwen3-coder-30b-a3b"], weights="fp8")
    units = {name: [b - a for a, b in units_of(m.units(1))] for name, m in plan.matrices.items()}
    assert set(units["qkv"][:40]) == set(units["qkv"][99:]) == {2} and sorted(set(units["qkv"])) == [2, 3]
    assert units["fold"] == [0] * 100 + [1] * 32 and units["router"] == [0] * 116 + [1] * 16
    assert units["gate_up"] == [6] * 108 + [5] * 24, "most of those with a part of the fold"


@pytest.mark.parametrize("ctas", [132, 108, 4])
@pytest.mark.parametrize("name", [name for name, config in ALL.items() if not config.n_experts])
def test_every_block_of_a_flat_cut_is_read_once(name: str, ctas: int) -> None:
    plan = make_plan(ALL[name], ctas=ctas)
    for matrix in plan.matrices.values():
        read = []  # blocks, counted through all tiles
        for cta in range(ctas):
            mine = list(segments(matrix, cta, ctas))
            read += [tile * matrix.blocks + block for _, tile, first, last in mine for block in range(first, last)]
            lengths = [sum(last - first for warp, _, first, last in mine if warp == w) for w in range(WARPS)]
            assert max(lengths) - min(lengths) <= matrix.chunks, "no warp has much more than another"
        assert read == list(range(matrix.tiles * matrix.blocks))


def test_the_down_projection_of_a_narrow_model_is_made_of_two_parts() -> None:
    down = make_plan(SHAPES["qwen2.5-coder-1.5b"]).matrices["down"]
    stretches = [span(down, cta, 132) for cta in range(132)]
    makers = [sum(a < (t + 1) * down.blocks and b > t * down.blocks for a, b in stretches) for t in range(down.tiles)]
    assert down.parts == 2 and set(makers) == {2}
    assert max(b - a for a, b in stretches) == 53 and down.blocks == 70  # not 70 for 96 CTAs and none for 36
    assert make_plan(SHAPES["llama-3.2-1b"]).matrices["down"].parts == 1


@pytest.mark.parametrize("name", ALL)
def test_matrices_do_not_overlap(name: str) -> None:
    plan = make_plan(ALL[name], weights="int4", head="fp8")
    spans = []
    for key, matrix in plan.matrices.items():
        layers = 1 if key == "head" else plan.config.n_layers
        spans += [(start := plan.address(matrix, i, 0, 0, 0), start + matrix.nbytes) for i in range(layers)]
    spans.sort()
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert spans[-1][1] <= plan.arena_bytes and all(start % 16 == 0 for start, _ in spans)


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_overwritten_that_is_still_read(name: str) -> None:
    phases = list(make_plan(ALL[name]).phases())
    assert early_overwrites(phases + phases) == []


@pytest.mark.parametrize(("name", "read"), [("o", "attended"), ("down", "h"), ("gate_up", "y"), ("attention", "qkv")])
def test_a_phase_that_runs_ahead_of_a_reader_is_noticed(name: str, read: str) -> None:
    phases = list(make_plan(SMALL["qwen3"]).phases())
    loose = [replace(p, reads=p.reads - {read}) if p.name == name else p for p in phases]
    assert early_overwrites(loose + loose), f"{name} without {read}"


def tokens_bytes(plan: Plan) -> float:
    return plan.weight_bytes_per_token / 1e9


def test_bytes_of_a_token_are_those_of_the_model() -> None:
    """The figures of the roofline: 2.47 GB for Llama-3.2-1B in bf16, 3.04 and 1.62 GB for the 30B in fp8 and 4 bits."""
    assert tokens_bytes(make_plan(SHAPES["llama-3.2-1b"])) == pytest.approx(2.47, rel=0.01)
    moe = SHAPES["qwen3-coder-30b-a3b"]
    assert tokens_bytes(make_plan(moe, weights="fp8")) == pytest.approx(3.06, rel=0.01)
    assert tokens_bytes(make_plan(moe, weights="int4")) == pytest.approx(1.6, rel=0.02)


@pytest.mark.parametrize("ctas", [24, 46, 76, 128])
@pytest.mark.parametrize("weights", ["bf16", "fp8", "int4"])
def test_a_wide_model_fits_small_gpus(weights: str, ctas: int) -> None:
    """99 KB of shared memory, as GPUs of desktops have."""
    plan = make_plan(SHAPES["qwen2.5-coder-7b"], weights=weights, ctas=ctas, rows=1)
    for driver in ("persistent", "graph"):
        assert layout(plan, driver, 99 << 10).slots >= 2


@pytest.mark.parametrize("wgmma", [False, True])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("weights", [name for name in FORMATS if name not in GENERAL_ONLY])
def test_decoding_fits_with_a_deep_ring(name: str, weights: str, wgmma: bool) -> None:
    plan = make_plan(SHAPES[name], weights=weights, rows=1)
    assert layout(plan, "persistent", wgmma=wgmma).slots >= 4
    graph = layout(plan, "graph", wgmma=wgmma)
    assert graph.slots >= 2 and graph.total <= 227 << 10


def test_splits_depend_on_the_position_only_and_are_bounded() -> None:
    plan = make_plan(SHAPES["qwen3-coder-30b-a3b"])
    lengths = [split_length(plan, p) for p in range(0, 262144, 997)]
    assert lengths == sorted(lengths) and lengths[0] == 64
    splits = [-(-(p + 1) // split_length(plan, p)) for p in range(0, 262144, 997)]
    assert max(splits) <= plan.max_splits
    assert all(n > plan.max_splits / 2 for n in splits[3:]) and min(splits[33:]) >= 30  # long contexts fill the GPU


def changed(**fields: object) -> ModelConfig:
    return ModelConfig(**{**SMALL["llama"].__dict__, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"head_dim": 48}, {"n_heads": 34, "n_kv_heads": 2}])
def test_shapes_that_the_kernels_cannot_run_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(FulgurError):
        make_plan(changed(**fields))
    with pytest.raises(FulgurError, match="weight format"):
        make_plan(SMALL["llama"], weights="int3")
    with pytest.raises(FulgurError, match="general driver only"):
        make_plan(SMALL["llama"], weights="mxfp4")
