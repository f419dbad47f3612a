"""bfloat16 without a numpy type: the upper half of a float32, held as uint16."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)


def from_bfloat16(raw: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
