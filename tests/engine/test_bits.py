"""`bits = 16` of a model: weights in bf16 on a GPU, an error that says so on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgur.engine import device as choosing
from fulgur.engine.device import choose
from fulgur.engine.load import EngineOptions, open_engine
from fulgur.errors import FulgurError, UsageError
from fulgur.kernels.cuda import device
from fulgur.kernels.cuda import open as opening
from fulgur.kernels.cuda.device import Gpu
from fulgur.server.config import load

GPU = Gpu("Fake H200", (9, 0), 132, 141 << 30, 227 << 10)


def test_server_toml_takes_the_bits_of_both_devices(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    for bits in (4, 8, 16):
        file.write_text(f'[models.a]\nbackend = "local"\npath = "x"\nbits = {bits}\n')
        assert load(file).models["a"].bits == bits
    file.write_text('[models.a]\nbackend = "local"\npath = "x"\nbits = 5\n')
    with pytest.raises(UsageError, match=r"5 .*bits"):
        load(file)


def test_a_gpu_takes_16_bits(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(EngineOptions(model_folder, bits=16, device="cuda")).gpu == 0
    monkeypatch.setattr(device, "survey", lambda: [GPU])
    monkeypatch.setattr(opening, "usable", lambda index=0: GPU)
    assert choose(EngineOptions(model_folder, bits=16)).gpu == 0, "small, but the CPU cannot run it"
    assert choose(EngineOptions(model_folder, bits=8)).gpu is None


def test_the_cpu_refuses_16_bits_and_says_why_it_was_chosen(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FulgurError, match=r"bits = 16 works only on the GPU.*CPU") as refused:
        open_engine(EngineOptions(model_folder, bits=16, device="cpu"))
    assert refused.value.hint is not None and "4 or 8" in refused.value.hint
    monkeypatch.setattr(device, "LIBRARY", "libcuda-that-is-not-there.so.1")
    monkeypatch.setattr(choosing, "SMALL", 1000)
    with pytest.raises(FulgurError, match=r"bits = 16 works only on the GPU.*no NVIDIA driver"):
        choose(EngineOptions(model_folder, bits=16))
