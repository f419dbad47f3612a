"""The kernels of prefill (csrc/prefill.cu): their arguments byte by byte, which of them a model needs, launches."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.build import architecture, cubin_of, sources
from fulgur.kernels.cuda.device import LIBRARY, Gpu, Module
from fulgur.kernels.cuda.formats import Format
from fulgur.kernels.cuda.plan import Matrix, Plan

OUTPUTS, THREADS = 256, 384  # of a product's CTA
TOKENS = (32, 64, 128)  # tokens in a tile of a product
ROPE_WARPS = 4  # warps that divide the heads of a row
STAGES, SHARED = 6, 227 << 10
QUAD = 4  # tiles; as in rows.cuh, with the next two
STEP_TOKENS = (8, 16, 32, 64)  # rows of a step, or of an expert in it, that a tile holds
STEP_STAGES = 8
# KB that an SM gets per microsecond, from memory and in all; microseconds per stage, and per part of the sums.
FROM_MEMORY, FROM_CACHE, A_STAGE, A_PART = 35, 43, 0.25, 0.3

_P, _I, _F, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_longlong


def structure(name: str, **kinds: tuple[Any, str]) -> Any:
    fields = [(field, kind) for kind, names in kinds.values() for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Product = structure(
    "Product", a=(_P, "weights x out rows routing_weight tiles tile_count bias"), b=(_L, "copy_bytes out_split"),
    c=(_I, "n matrix_rows matrix_tiles blocks out_stride splits bias_stride"), d=(_F, "limit alpha"),
    e=(_I, "wide stages"),
)  # fmt: skip
Norm = structure("Norm", a=(_P, "x weight out plain"), b=(_I, "n width stride ordered"), c=(_F, "eps"), d=(_I, "pad"))
Rope = structure(
    "Rope", a=(_P, "qkv bias q_weight k_weight rope table q keys values key_exponents value_exponents"),
    b=(_I, "n position heads kv_heads head_dim qkv_stride"), c=(_F, "eps"), d=(_I, "pad"),
)  # fmt: skip
Gather = structure(
    "Gather", a=(_P, "keys values key_exponents value_exponents table to_keys to_values"),
    b=(_I, "n kv_heads head_dim pad"),
)  # fmt: skip
Attended = structure(
    "Attended", a=(_P, "own earlier own_lse earlier_lse out"),
    b=(_I, "n width stride head_dim ordered own_row own_head earlier_row earlier_head lse_head"),
)  # fmt: skip
Route = structure("Route", a=(_P, "logits chosen routing_weight"), b=(_I, "n experts top stride normalise pad"))
Sort = structure(
    "Sort", a=(_P, "chosen routing_weight row place sorted_routing_weight starts tiles tile_count finished"),
    b=(_I, "choices top experts tokens"),
)  # fmt: skip
Combine = structure("Combine", a=(_P, "y place x"), b=(_I, "n width top pad"))
Widen = structure("Widen", a=(_P, "weights out"), b=(_I, "tiles blocks"))
Swiglu = structure("Swiglu", a=(_P, "both h"), b=(_I, "n width stride pad"))
StepNorm = structure(
    "StepNorm", a=(_P, "rows embed parts y place x weight out plain"), b=(_I, "n width stride splits top threads"),
    c=(_F, "eps"),
)  # fmt: skip
StepRope = structure(
    "StepRope",
    a=(_P, "rows parts bias q_weight k_weight rope query_scale tables q keys values key_exponents value_exponents"),
    b=(_I, "n splits stride heads kv_heads head_dim rotated table_width"), c=(_F, "eps"), d=(_I, "pad"),
)  # fmt: skip
StepAttend = structure(
    "StepAttend", a=(_P, "rows q keys values key_exponents value_exponents tables parts arrived sinks gate out"),
    b=(_I, "n heads kv_heads head_dim table_width stride gate_stride splits window skipped"), c=(_F, "scale"),
    d=(_I, "ordered"),
)  # fmt: skip
StepRoute = structure(
    "StepRoute", a=(_P, "rows parts row place routing_weight tiles tile_count"),
    b=(_I, "n splits stride experts top tokens normalise pad"),
)  # fmt: skip
StepAdvance = structure("StepAdvance", a=(_P, "rows tokens chosen"), b=(_I, "stride pad"))
STRUCTURES = (
    Product, Norm, Rope, Gather, Attended, Route, Sort, Combine, Widen, Swiglu, StepNorm, StepRope, StepAttend,
    StepRoute, StepAdvance,
)  # as run_prefill.cpp counts  # fmt: skip


def epilogues(plan: Plan) -> dict[str, str]:
    """What happens to the sums of each matrix."""
    found = {"qkv": "STORE_BF16", "o": "ADD_FLOAT", "gate_up": "SWIGLU"}
    return {**found, "router": "STORE_FLOAT", "down": "STORE_BF16"} if plan.moe else {**found, "down": "ADD_FLOAT"}


def _code(fmt: Format) -> str:
    return fmt.name.replace("-", "_").upper()


def kernel_name(matrix: Matrix, epilogue: str, tokens: int) -> str:
    return f"{epilogue}_{_code(matrix.format)}_{tokens}".lower()


def modules(plan: Plan) -> dict[str, tuple[str, str]]:
    """What to compile: the stem of a source and its instances.h. Products are slow to compile, so each is separate."""
    found = epilogues(plan)
    codes = sorted({_code(plan.matrices[name].format) for name in found})
    widen = "".join(f"WIDEN(widen_{code.lower()}, {code})\n" for code in codes)
    made = {"prefill": ("prefill", widen), "step": ("batch", "")}
    for name, epilogue in found.items():
        matrix = plan.matrices[name]
        for tokens in TOKENS:
            kernel = kernel_name(matrix, epilogue, tokens)
            made[kernel] = ("wide", f"INSTANCE({kernel}, {_code(matrix.format)}, {tokens}, {epilogue})\n")
    for name, matrix in plan.matrices.items():
        for tokens in STEP_TOKENS if name != "fold" else ():
            epilogue = step_epilogue(plan, name)
            kernel = f"step_{kernel_name(matrix, epilogue, tokens)}"
            made[kernel] = ("wide", f"STEP({kernel}, {_code(matrix.format)}, {tokens}, {epilogue})\n")
    return made


def step_epilogue(plan: Plan, name: str) -> str:
    """What happens to the sums of a matrix in a step: mostly nothing, since the reader adds up their parts."""
    if name == "gate_up":
        return "SWIGLU"
    return "STORE_BF16" if plan.moe and name == "down" else "STORE_FLOAT"


def step_splits(matrix: Matrix, ctas: int) -> int:
    """Parts into which a product's columns are cut in a step, so that every SM has an equal part of the matrix. Adding
    up more parts costs time; with fewer, an SM has to read more of the rows. They do not depend on the number of rows:
    that would change the bits of the sums."""
    quads, blocks = -(-matrix.tiles // QUAD), matrix.copy_blocks

    def cost(splits: int) -> float:
        most, each = -(-quads * splits // ctas), blocks // splits
        weights, rows = most * each * QUAD * matrix.format.block_bytes / 1e3, each * 8.192
        stages = -(-most // 2) * each
        return max(weights / FROM_MEMORY, (weights + rows) / FROM_CACHE, stages * A_STAGE) + splits * A_PART

    return min((n for n in range(1, min(blocks, 16) + 1) if blocks % n == 0), key=cost)


def compiled(wanted: dict[str, tuple[str, str]], arch: str) -> dict[str, bytes]:
    """All of `modules`: compiled in parallel the first time, later taken from the cache."""

    def one(module: tuple[str, str]) -> bytes:
        stem, text = module
        return cubin_of(stem, {**sources(stem), "instances.h": text}, arch)

    with ThreadPoolExecutor(min(len(wanted), os.cpu_count() or 1)) as pool:
        return dict(zip(wanted, pool.map(one, wanted.values()), strict=True))


def shared_bytes(fmt: Format, tokens: int) -> int:
    """As `Memory` of wide.cuh."""
    weights = OUTPUTS // 16 * fmt.block_bytes
    stage = tokens * 256 + -(-weights // 1024) * 1024
    fixed = 2 * 16 * 132 * 4 + 128 + 1024
    return min((SHARED - fixed) // stage, STAGES) * stage + fixed


class Launch:
    """One launch of every layer: its arguments, and which of them advance by a number of bytes from layer to layer."""

    def __init__(self, name: str, arguments: Any, ctas: int, threads: int = 256, shared: int = 0) -> None:
        self.name, self.arguments, self.ctas, self.threads, self.shared = name, arguments, ctas, threads, shared
        self._moving: list[tuple[str, int, int]] = []

    def moving(self, **fields: tuple[int, int]) -> Launch:
        """Addresses as (that of layer 0, bytes to the next)."""
        self._moving += [(name, base, stride) for name, (base, stride) in fields.items()]
        return self

    def at(self, layer: int) -> Launch:
        for name, base, stride in self._moving:
            setattr(self.arguments, name, base + layer * stride)
        return self


class Kernels:
    """The compiled kernels of a model (`modules`), and where they run."""

    def __init__(self, wanted: dict[str, tuple[str, str]], gpu: Gpu, stream: Any) -> None:
        self.ctas = gpu.multiprocessors
        self._stream = stream.cuda_stream
        found = compiled(wanted, architecture(gpu.capability))
        self._modules = {name: Module(cubin) for name, cubin in found.items()}
        self._functions: dict[tuple[str, int], int] = {}
        # Through ctypes: launches must cost the host less than the device, and there are a dozen per layer.
        self._launch = ctypes.CDLL(LIBRARY).cuLaunchKernel
        self._launch.argtypes = [_P, *[ctypes.c_uint] * 7, _P, _P, _P]
        self._parameters = (_P * 1)()

    def run_dependent(self, launch: Launch) -> None:
        """Like `run`, for a kernel that waits for its predecessor by itself. For captures: it takes the host longer."""
        self._module(launch.name).launch(
            launch.name, launch.arguments, ctas=launch.ctas, threads=launch.threads, shared=launch.shared,
            stream=self._stream, dependent=True,
        )  # fmt: skip

    def run(self, launch: Launch) -> None:
        key = launch.name, launch.shared
        function = self._functions.get(key)
        if function is None:
            function = self._functions[key] = int(self._module(launch.name).function(*key))
        self._parameters[0] = ctypes.addressof(launch.arguments)
        status = self._launch(
            function, launch.ctas, 1, 1, launch.threads, 1, 1, launch.shared, self._stream, self._parameters, None
        )
        if status:
            raise FulgurError(f"launching {launch.name} failed: CUDA error {status}", hint="Start the engine again.")

    def _module(self, name: str) -> Module:
        """A product has a separate module; all others are in the one that their name begins with, or in `prefill`."""
        return self._modules.get(name) or self._modules.get(name.split("_")[0]) or self._modules["prefill"]

    def rows(self, name: str, kind: Any, n: int, per_row: int = 1, **values: Any) -> Launch:
        """A launch with one warp per item: `per_row` items per row, 8 warps per CTA."""
        return Launch(name, fill(kind, n=n, **values), max(min(-(-n * per_row // 8), 16 * self.ctas), 1))

    def product(self, matrix: Matrix, epilogue: str, tokens: int, most: int, splits: int = 1, **values: Any) -> Launch:
        """A product with at most `most` tiles of tokens."""
        across = -(-matrix.tiles * 16 // OUTPUTS)
        arguments = fill(
            Product, matrix_rows=matrix.rows, matrix_tiles=matrix.tiles, blocks=matrix.copy_blocks,
            copy_bytes=matrix.copy_bytes, splits=splits, **values,
        )  # fmt: skip
        name, shared = kernel_name(matrix, epilogue, tokens), shared_bytes(matrix.format, tokens)
        return Launch(name, arguments, min(most * across * splits, self.ctas), THREADS, shared)

    def step_product(self, matrix: Matrix, epilogue: str, tokens: int, splits: int = 1, **values: Any) -> Launch:
        """A product of a step (rows.cuh): a matrix for up to `tokens` rows, or experts for tiles of up to that many."""
        quads = -(-matrix.tiles // QUAD) * splits
        experts = "tiles" in values
        most = 4 if experts else -(-quads // self.ctas)
        # Two quads of bf16 have as many bytes as four of fp8, so enough stages are in flight.
        wide, each = min(most, 2 if matrix.format.block_bytes > 4000 else 4), matrix.copy_blocks // splits
        stage = tokens * 256 + -(-wide * QUAD * matrix.format.block_bytes // 1024) * 1024
        fixed = 2 * min(tokens, 16) * 132 * 4 + 16 * STEP_STAGES + 1024
        pieces = -(-most // wide) + (splits > 1 and most > 1)  # a stretch may end in another split
        wanted = STEP_STAGES if experts else pieces * each
        stages = max(min(wanted, STEP_STAGES, (SHARED - fixed) // stage), 1)
        arguments = fill(
            Product, matrix_rows=matrix.rows, matrix_tiles=matrix.tiles, blocks=matrix.copy_blocks,
            copy_bytes=matrix.copy_bytes, splits=splits, wide=wide, stages=stages, **values,
        )  # fmt: skip
        ctas = self.ctas if experts else min(quads, self.ctas)
        return Launch(f"step_{kernel_name(matrix, epilogue, tokens)}", arguments, ctas, THREADS, stages * stage + fixed)

    def widen(self, matrix: Matrix, **values: Any) -> Launch:
        arguments = fill(Widen, tiles=matrix.tiles, blocks=matrix.copy_blocks, **values)
        ctas = max(min(-(-matrix.tiles * matrix.copy_blocks // 8), 16 * self.ctas), 1)
        return Launch(f"widen_{_code(matrix.format).lower()}", arguments, ctas)

    def tile_tokens(self, rows: int, matrix: Matrix) -> int:
        """Tokens per tile, for `rows` rows of one matrix: as many as pay off, but few enough to keep all CTAs busy."""
        across = -(-matrix.tiles * 16 // OUTPUTS)

        def cost(tokens: int) -> int:
            tiles = -(-rows // tokens) * across
            return -(-tiles // self.ctas) * max(tokens, 48)  # below 48 tokens the weights take longer than the products

        return min(reversed(TOKENS), key=cost)

    def close(self) -> None:
        for module in self._modules.values():
            module.close()


def fill(kind: Any, **values: Any) -> Any:
    """Tensors as their addresses; None is a null pointer."""
    addresses = {name: v.data_ptr() if hasattr(v, "data_ptr") else v for name, v in values.items()}
    return kind(**addresses)
