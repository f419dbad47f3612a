"""Every operation on every instruction set this machine has, against the numpy reference."""

from __future__ import annotations

import numpy as np
import pytest

from fulgur.kernels.cases import Case, cases
from fulgur.kernels.cpu import _native

CASES = list(cases())
ISAS = [*_native.isas(), *(["amx_emulated"] if _native.has_emulated_amx() else [])]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("operation", sorted({case.name.split(".")[0] for case in CASES}))
def test_agrees_with_the_reference(isa: str, operation: str) -> None:
    wrong = [
        f"{case.name}: {distance:.1e} > {case.allowed(isa):.1e}"
        for case in CASES
        if case.name.split(".")[0] == operation
        if not (distance := _distance(case, isa)) <= case.allowed(isa)
    ]
    assert not wrong


@pytest.mark.parametrize("isa", ISAS)
def test_integer_products_are_the_same_bits_on_every_instruction_set(isa: str) -> None:
    # What the fused multiply-adds do to the sums is fixed where the CPU has them; the portable path rounds twice.
    if isa == "portable":
        pytest.skip("rounds product and sum apart")
    first = ISAS[0]
    for case in CASES:
        if case.name.startswith("linear_store"):
            assert np.array_equal(case.run(isa), case.run(first)), case.name


def test_unknown_instruction_set_is_named() -> None:
    with pytest.raises(ValueError, match="avx9000"):
        CASES[0].run("avx9000")


def _distance(case: Case, isa: str) -> float:
    out = case.run(isa)
    assert out.shape == case.expected.shape
    return float(np.linalg.norm(out - case.expected) / max(float(np.linalg.norm(case.expected)), 1e-30))
