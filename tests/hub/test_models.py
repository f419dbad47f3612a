"""Which models fit, quantising one, and serving what was fetched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fulgur.hub import here
from fulgur.hub.catalogue import CATALOGUE
from fulgur.hub.fit import Device, families, fit
from fulgur.model.random import random_model, tiny_config, write_hf_folder
from fulgur.protocol.errors import ApiError
from fulgur.server.config import ServerConfig
from fulgur.server.registry import build
from fulgur.ui.cli import main

LAPTOP = Device("the CPU", 24, 34, gpu=False)
H200 = Device("H200", 141, 4500, gpu=True)
ALL = {entry.family for entry in CATALOGUE}


def test_what_fits_comes_first_and_what_does_not_says_why() -> None:
    found = {row.entry.name: row for row in fit([LAPTOP], ALL, ALL)}
    assert not found["qwen3.6-35b-a3b"].why_not
    assert 9 < found["qwen3.6-35b-a3b"].tokens_s < 17.2, "below what the memory allows, near what is reached"
    assert found["gpt-oss-120b"].why_not.startswith("needs ")
    runnable = [not row.why_not for row in fit([LAPTOP], ALL, ALL)]
    assert runnable == sorted(runnable, reverse=True)


def test_a_gpu_is_chosen_where_it_is_faster() -> None:
    found = {row.entry.name: row for row in fit([LAPTOP, H200], ALL, ALL)}
    coder = found["qwen3-coder-30b-a3b"]
    assert coder.device is H200
    assert 850 < coder.tokens_s < 1000, "918 was measured"


def test_a_family_that_does_not_run_is_named() -> None:
    found = {row.entry.name: row for row in fit([H200], ALL, {"qwen2"})}
    assert "gpt_oss" in found["gpt-oss-20b"].why_not


def test_all_families_run_on_both_and_unmeasured_ones_are_promised_less() -> None:
    on_cpu, on_gpu = families()
    assert on_cpu == on_gpu >= {"qwen3_moe", "gpt_oss", "qwen3_5"}
    found = {row.entry.name: row for row in fit([LAPTOP, H200], on_cpu, on_gpu)}
    assert found["gpt-oss-20b"].device is found["qwen3-coder-30b-a3b"].device is H200
    shares = [row.tokens_s * row.entry.read_gb for row in map(found.get, ("gpt-oss-20b", "qwen3-coder-30b-a3b")) if row]
    assert 0 < shares[0] < shares[1]


def test_a_model_is_quantised_and_served_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FULGUR_HOME", str(tmp_path / "home"))
    tiny_model = tmp_path / "tiny"
    config = tiny_config("qwen3")
    write_hf_folder(tiny_model, config, random_model(config, 1))
    registry = build(ServerConfig())
    with pytest.raises(ApiError, match="no model 'tiny-4bit'"):
        registry.get("tiny-4bit")
    assert main(["models", "quantize", str(tiny_model)]) == 0
    assert "fulgur -m tiny-4bit" in capsys.readouterr().out
    assert registry.get("tiny-4bit").model.path == str(here.root() / "tiny-4bit"), "without a restart"
    assert json.loads((here.root() / "tiny-4bit" / "config.json").read_text())["fulgur"]["bits"] == 4
    assert main(["models", "quantize", str(tiny_model)]) == 2, "never written over"
