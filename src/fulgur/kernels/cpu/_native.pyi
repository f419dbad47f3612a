"""The compiled kernels (module.cpp)."""

from typing import Any

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int32]
Float = npt.NDArray[np.float32]

BLOCK_TOKENS: int

def isas() -> list[str]: ...
def has_emulated_amx() -> bool: ...
def read_bandwidth(bytes: int, threads: int, seconds: float = 0.3) -> float: ...
def multiply_rate(threads: int, seconds: float = 0.1) -> float: ...
def op_norm_quantise(
    isa: str,
    x: Float,
    weight: Float | None,
    eps: float,
    bits: int,
    group: int,
    q: npt.NDArray[np.int8],
    scale: Float,
    correction: Int,
    /,
) -> None: ...

class ArrangedMatrix:
    def __init__(
        self,
        isa: str,
        data: npt.NDArray[np.uint8],
        bits: int,
        group: int,
        rows: int,
        cols: int,
        threads: int,
        /,
    ) -> None: ...

def op_linear(
    weights: ArrangedMatrix,
    kind: str,
    q: npt.NDArray[np.int8],
    scale: Float,
    correction: Int,
    out: Float,
    index: Int | None,
    /,
) -> None: ...
def op_attention(isa: str, keys: Float, values: Float, q: Float, out: Float, /, kv_bits: int = 16) -> None: ...
def op_norm_rope(isa: str, head: Float, weight: Float | None, eps: float, cos: Float, sin: Float, /) -> None: ...

class NativeRuntime:
    def __init__(
        self,
        dims: dict[str, Any],
        matrices: dict[str, tuple[npt.NDArray[np.uint8], int, int, int, int, bool]],
        vectors: dict[str, Float],
        plain: dict[str, npt.NDArray[np.uint16]],
        experts: dict[str, tuple[npt.NDArray[np.uint8], int, int, int, int]],
        embed: npt.NDArray[np.uint16] | None,
        cos: Float,
        sin: Float,
        kv_blocks: int,
        threads: int,
        snapshots: int,
        isa: str,
    ) -> None: ...
    def step(
        self,
        tokens: Int,
        positions: Int,
        sequences: Int,
        tables: Int,
        wanted: Int,
        argmax: Int,
        logits: Float | None,
    ) -> None: ...
    def copy_block(self, source: int, target: int, /) -> None: ...
    def save_state(self, slot: int, position: int, snapshot: int) -> None: ...
    def restore_state(self, snapshot: int, slot: int) -> None: ...
    def copy_state(self, source: int, target: int) -> None: ...
    def draft(self, token: int, position: int, sequence: int, tables: Int, out: Int) -> int: ...
    def catch_up(self, sequence: int, tables: Int) -> None: ...
    def scan(self, context: int, multiply: bool) -> float: ...
    def close(self) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def snapshot_bytes(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def kv_bytes(self) -> int: ...
