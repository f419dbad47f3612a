"""Symmetric group quantisation: the canonical form of a matrix before it is packed for the kernels."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fulgur.errors import FulgurError

log = logging.getLogger(__name__)

GROUPS = (128, 64, 32)
LIMIT = {4: 7, 8: 127}  # the integer the largest magnitude of a group maps to


@dataclass
class QuantMatrix:
    """weight[r, c] ≈ q[r, c] * scale[r, c // group]."""

    bits: int
    group: int
    rows: int
    cols: int
    q: npt.NDArray[np.int8]  # [rows, cols], -8..7 or -127..127
    scale: npt.NDArray[np.float16]  # [rows, cols // group]


def choose_group(cols: int, group: int, name: str = "matrix") -> int:
    """`group` if it divides `cols`, else the largest of 128, 64, 32 below it that does."""
    if group >= 32 and group % 32 == 0 and cols % group == 0:
        return group
    for smaller in GROUPS:
        if smaller <= group and cols % smaller == 0:
            log.warning("%s: groups of %d do not divide %d columns, using groups of %d", name, group, cols, smaller)
            return smaller
    raise FulgurError(
        f"{name}: {cols} columns cannot be divided into quantisation groups of {group} or less",
        hint="Columns must be a multiple of 32, groups one of 128, 64, 32.",
    )


def quantise(weight: npt.NDArray[np.float32], bits: int, group: int, name: str = "matrix") -> QuantMatrix:
    """Round each group of `group` neighbouring columns to `bits` bits; the scale is rounded to fp16 first."""
    if bits not in LIMIT:
        raise FulgurError(f"{name}: {bits} bits are not supported, only 4 and 8")
    rows, cols = weight.shape
    group = choose_group(cols, group, name)
    grouped = np.ascontiguousarray(weight, np.float32).reshape(rows, cols // group, group)
    peak = np.maximum(grouped.max(axis=2), -grouped.min(axis=2))
    if not np.isfinite(peak).all():
        raise FulgurError(f"{name}: the weights contain values that are not finite")
    with np.errstate(over="ignore"):  # an infinite scale is reported just below
        scale = (peak / np.float32(LIMIT[bits])).astype(np.float16)
    wide = scale.astype(np.float32)
    if not np.isfinite(wide).all():
        raise FulgurError(f"{name}: the weights reach {float(peak.max()):g}, too large for an fp16 scale")
    # A group of zeros (or one too small for fp16) has scale 0: its integers are 0, not a division by zero.
    inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide != 0)
    scaled = grouped * inverse[:, :, None]
    np.rint(scaled, out=scaled)
    np.clip(scaled, -8 if bits == 4 else -127, LIMIT[bits], out=scaled)
    return QuantMatrix(bits, group, rows, cols, scaled.astype(np.int8).reshape(rows, cols), scale)


def dequantise(matrix: QuantMatrix) -> npt.NDArray[np.float32]:
    grouped = matrix.q.reshape(matrix.rows, -1, matrix.group).astype(np.float32)
    return (grouped * matrix.scale.astype(np.float32)[:, :, None]).reshape(matrix.rows, matrix.cols)
