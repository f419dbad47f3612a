"""Which device a model runs on: what is named is used or refused, what is not is chosen with a reason."""

from __future__ import annotations

import json
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


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "survey", lambda: [GPU])
    monkeypatch.setattr(opening, "usable", lambda index=0: GPU)


@pytest.fixture
def none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "LIBRARY", "libcuda-that-is-not-there.so.1")


@pytest.fixture
def big(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that counts as large."""
    monkeypatch.setattr(choosing, "SMALL", 1000)
    return model_folder


def test_what_is_named(model_folder: Path) -> None:
    assert choose(EngineOptions(model_folder, device="cpu")) == choosing.Choice(None, "as requested")
    assert choose(EngineOptions(model_folder, device="cuda")).gpu == 0
    assert choose(EngineOptions(model_folder, device="cuda:3")).gpu == 3
    for wrong in ("gpu", "cuda:", "cuda:x", "CPU", "cuda:100"):
        with pytest.raises(UsageError, match="unknown device"):
            choose(EngineOptions(model_folder, device=wrong))
    with pytest.raises(FulgurError, match="threads applies only to the CPU"):
        choose(EngineOptions(model_folder, threads=2, device="cuda"))
    with pytest.raises(FulgurError, match="reference runtime applies only to the CPU"):
        choose(EngineOptions(model_folder, runtime="reference", device="cuda"))
    with pytest.raises(FulgurError, match="kv_dtype 'int8' works only on the CPU"):
        choose(EngineOptions(model_folder, kv_dtype="int8", device="cuda"))
    with pytest.raises(
        FulgurError, match="kv_dtype 'fp8' works only on the GPU, but the model would run on the CPU"
    ) as refused:
        choose(EngineOptions(model_folder, kv_dtype="fp8", device="cpu"))
    assert refused.value.hint is not None and "bf16 or int8" in refused.value.hint
    assert choose(EngineOptions(model_folder, kv_dtype="fp8", device="cuda")).gpu == 0
    with pytest.raises(FulgurError, match="unknown kv_dtype 'fp4'"):
        open_engine(EngineOptions(model_folder, kv_dtype="fp4"))
    with pytest.raises(FulgurError, match="only kv_dtype bf16"):
        open_engine(EngineOptions(model_folder, kv_dtype="int8", runtime="reference"))


def test_keys_and_values_of_8_bits_take_half_the_memory(model_folder: Path) -> None:
    sizes = []
    for dtype in ("bf16", "int8"):
        engine, info = open_engine(EngineOptions(model_folder, kv_tokens=1024, kv_dtype=dtype))
        sizes.append(info.kv_bytes)
        engine.close()
    assert sizes[1] <= 0.54 * sizes[0]


def test_a_gpu_that_is_named_and_not_there(model_folder: Path, none: None) -> None:
    with pytest.raises(FulgurError, match="no NVIDIA driver"):
        open_engine(EngineOptions(model_folder, device="cuda"))


def test_chosen_by_model_and_machine(model_folder: Path, big: Path, gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(EngineOptions(big)).gpu == 0
    assert choose(EngineOptions(big, kv_dtype="fp8")).gpu == 0
    with pytest.raises(FulgurError, match=r"kv_dtype 'fp8' works only on the GPU.*threads were requested"):
        choose(EngineOptions(big, kv_dtype="fp8", threads=1))
    for options, reason in (
        (EngineOptions(big, threads=1), "threads were requested"),
        (EngineOptions(big, runtime="reference"), "reference runtime"),
        (EngineOptions(big, kv_dtype="int8"), "int8"),
        (EngineOptions(big / "model.gguf"), "GGUF"),
    ):
        choice = choose(options)
        assert choice.gpu is None and reason in choice.reason
    monkeypatch.setattr(opening, "usable", lambda index=0: Gpu("tiny", (9, 0), 8, 1000, 99 << 10))
    assert "the weights need" in choose(EngineOptions(big)).reason
    monkeypatch.setattr(choosing, "SMALL", 1 << 30)
    assert "small enough" in choose(EngineOptions(model_folder)).reason
    monkeypatch.setattr(opening, "usable", lambda index=0: GPU)
    assert choose(EngineOptions(model_folder, kv_dtype="fp8")).gpu == 0  # which a small model is no reason against


def test_without_a_gpu_the_reason_is_told(big: Path, none: None) -> None:
    engine, info = open_engine(EngineOptions(big, kv_tokens=1024))
    assert info.runtime == "native" and "no NVIDIA driver" in info.reason
    engine.close()
    with pytest.raises(FulgurError, match=r"kv_dtype 'fp8' works only on the GPU.*no NVIDIA driver"):
        choose(EngineOptions(big, kv_dtype="fp8"))


def test_a_shape_that_the_gpu_engine_lacks_runs_on_the_cpu(
    tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fulgur.model.random import tiny_config

    (tmp_path / "config.json").write_text(json.dumps(tiny_config("gpt_oss").to_json()))
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    monkeypatch.setattr(choosing, "SMALL", 1)
    choice = choose(EngineOptions(tmp_path))
    assert choice.gpu is None and "heads of 16 dimensions: not supported on the GPU" in choice.reason


def test_the_server_reads_it_and_refuses_what_there_is_not(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('[models.a]\nbackend = "local"\npath = "x"\ndevice = "cuda:1"\n')
    assert load(file).models["a"].device == "cuda:1"
    file.write_text('[models.a]\nbackend = "local"\npath = "x"\ndevice = "gpu"\n')
    with pytest.raises(UsageError, match=r"models.a.device: unknown device 'gpu'"):
        load(file)
    file.write_text('[models.a]\nbackend = "local"\npath = "x"\nkv_dtype = "fp8"\n')
    assert load(file).models["a"].kv_dtype == "fp8"
    file.write_text('[models.a]\nbackend = "local"\npath = "x"\nkv_dtype = "fp16"\n')
    with pytest.raises(UsageError, match=r"models.a.kv_dtype: unknown kv_dtype 'fp16'"):
        load(file)


def test_serve_names_it_for_every_local_model() -> None:
    from fulgur.server.config import Model, ServerConfig
    from fulgur.ui.commands.serve import _set_device

    config = ServerConfig(models={"a": Model(backend="local", path="x"), "b": Model(backend="scripted")})
    _set_device(config, "cpu")
    assert [model.device for model in config.models.values()] == ["cpu", "auto"]
    with pytest.raises(FulgurError, match="unknown device"):
        _set_device(config, "tpu")


def test_a_cache_that_does_not_fit_is_said(model_folder: Path) -> None:
    with pytest.raises(
        FulgurError, match=r"a KV cache of 100,000,000,000 tokens needs [0-9,.]+ GB, more than is available"
    ):
        open_engine(EngineOptions(model_folder, kv_tokens=100_000_000_000, device="cpu"))
