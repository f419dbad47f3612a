"""The bench of variants gives its rows; what they say is for a quiet machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fulgur.bench import variants
from fulgur.workspace.folders import embedded_models


def test_the_rows_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def smallest(name: str) -> Iterator[Path]:
        yield embedded_models()[-1]

    monkeypatch.setattr(variants, "_folder", smallest)
    report = variants.run(argparse.Namespace(quick=True, model=None))
    assert {"variants.ratio.5.60M", "variants.ratio.5.0.5B"} <= {row.name for row in report.rows}
    assert all(row.value > 0 for row in report.rows)
