"""Checkpoints of the general driver's families, from their files to the arena: what is stored narrow stays what it
is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import emulated_family
import emulated_gpu
import numpy as np
import pytest
import torch
from plain_tokenizer import tokenizer

from fulgur.engine.events import Token
from fulgur.engine.load import EngineOptions, open_engine
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.errors import FulgurError
from fulgur.kernels.cuda import family_weights
from fulgur.kernels.cuda import open as opening
from fulgur.kernels.cuda.family_plan import Weights, make_family_plan
from fulgur.kernels.cuda.family_weights import FamilyWeights, assemble
from fulgur.kernels.cuda.open import check_folder, family_formats, state_slots
from fulgur.kernels.cuda.pack import interleave, quantise, unpack
from fulgur.kernels.reference import FloatModel
from fulgur.model.config import ModelConfig
from fulgur.model.folder import FolderSource
from fulgur.model.random import MemorySource, random_model, tiny_config
from fulgur.model.safetensors import write_safetensors
from fulgur.model.tensors import matrix_plans, plain_plans
from fulgur.model.weights import gather

Stored = dict[str, tuple[str, np.ndarray]]


def fp8(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes, and a scale for each 128 x 128 block."""
    q, scale = quantise(torch.from_numpy(np.ascontiguousarray(value)), Weights.named("fp8").usual)
    assert scale is not None
    return q.view(torch.uint8).numpy(), scale[::128].numpy()


def write(folder: Path, config: ModelConfig, stored: Stored, quantisation: dict[str, object]) -> FolderSource:
    raw = {**config.to_json(), "quantization_config": quantisation}
    (folder / "config.json").write_text(json.dumps(raw))
    write_safetensors(folder / "model.safetensors", stored)
    return FolderSource(folder)


def hybrid(folder: Path) -> FolderSource:
    """fp8 as Qwen ships it: experts of a layer in one tensor, small projections and the head wide."""
    config = tiny_config("qwen3_5_moe", d_model=160, d_expert=128, d_shared=64, n_layers=4)
    tensors, stored = random_model(config, 2), Stored()
    wide = ("embed_tokens", "lm_head", "mlp.gate.", "in_proj_a.", "in_proj_b.", "shared_expert_gate")
    for name, value in tensors.items():
        if ".experts." in name:
            continue
        stored[name] = ("F32", value)
        if value.ndim == 2 and not any(part in name for part in wide):
            codes, scale = fp8(value)
            stored[name], stored[name + "_scale_inv"] = ("F8_E4M3", codes), ("F32", scale)
    for i in range(config.n_layers):
        prefix = f"model.layers.{i}.mlp.experts."
        for fused, parts in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
            each = [
                fp8(np.concatenate([tensors[f"{prefix}{e}.{part}_proj.weight"] for part in parts]))
                for e in range(config.n_experts)
            ]
            stored[prefix + fused] = ("F8_E4M3", np.stack([codes for codes, _ in each]))
            stored[prefix + fused + "_scale_inv"] = ("F32", np.stack([scale for _, scale in each]))
    return write(folder, config, stored, {"quant_method": "fp8", "weight_block_size": [128, 128]})


def gpt_oss(folder: Path) -> FolderSource:
    """MXFP4 experts, gates and ups by turns; everything else wide."""
    config = tiny_config("gpt_oss", head_dim=32, d_model=96, d_expert=64, d_ffn=64)
    noise = np.random.default_rng(3)
    stored: Stored = {k: ("F32", v) for k, v in random_model(config, 3).items() if ".experts." not in k}
    for i in range(config.n_layers):
        prefix = f"model.layers.{i}.mlp.experts."
        for fused, rows, cols in (("gate_up_proj", 2 * config.d_expert, 96), ("down_proj", 96, config.d_expert)):
            shape = (config.n_experts, rows, cols // 32)
            stored[f"{prefix}{fused}_blocks"] = ("U8", noise.integers(0, 256, (*shape, 16)).astype(np.uint8))
            stored[f"{prefix}{fused}_scales"] = ("U8", noise.integers(118, 127, shape).astype(np.uint8))
            stored[f"{prefix}{fused}_bias"] = ("F32", noise.standard_normal(shape[:2]).astype(np.float32))
    return write(folder, config, stored, {"quant_method": "mxfp4"})


def matrix(held: FamilyWeights, name: str, copy: int = 0) -> np.ndarray:
    m = held.plan.matrices[name]
    start = m.offset + copy * m.copy_bytes
    return unpack(held.arena[start : start + m.copy_bytes], m.format, m.rows, m.cols).numpy()


@pytest.mark.parametrize(("made", "formats"), [(hybrid, ("fp8", "fp8", "bf16")), (gpt_oss, ("bf16", "mxfp4", "bf16"))])
def test_what_is_narrow_stays_what_it_is(made, formats: tuple[str, str, str], tmp_path: Path) -> None:
    source = made(tmp_path)
    config, weights = source.config, family_formats(source, None)
    assert (weights.usual.name, weights.experts.name, weights.head.name) == formats
    assert check_folder(tmp_path) == config
    held = assemble(make_family_plan(config, weights, ctas=4), source, "cpu")
    for name, plan in {**matrix_plans(config), **plain_plans(config)}.items():
        if not name.endswith((".gate_up", ".down")):
            expected = gather(source, plan)
            if held.plan.matrices[name].format.name == "bf16":
                expected = torch.from_numpy(expected).bfloat16().float().numpy()
            assert np.array_equal(matrix(held, name), expected), name

    def rows(name: str, count: int) -> torch.Tensor:
        return torch.from_numpy(source.rows(name, np.arange(count)))

    networks = [(f"model.layers.1.mlp.experts.{e}.", e, config.d_expert) for e in (0, config.n_experts - 1)]
    if config.d_shared:
        networks.append(("model.layers.1.mlp.shared_expert.", config.n_experts, config.d_shared))
    for prefix, copy, width in networks:
        gates = interleave(*(rows(f"{prefix}{part}_proj.weight", width) for part in ("gate", "up"))).numpy()
        got = matrix(held, "layers.1.gate_up", copy)
        assert np.array_equal(got[: len(gates)], gates) and not got[len(gates) :].any()
        down = rows(prefix + "down_proj.weight", config.d_model).numpy()
        got = matrix(held, "layers.1.down", copy)
        assert np.array_equal(got[:, :width], down) and not got[:, width:].any()


@pytest.mark.parametrize("kind", ["bf16", "fp8", "fp8-rows", "int4-64", "mxfp4"])
@pytest.mark.parametrize("made", [hybrid, gpt_oss, None])
def test_experts_packed_together_are_those_packed_one_by_one(
    made, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if made is None:  # widths that no block, tile or pair of 8 rows divides, and a shared expert wider than the others
        config = tiny_config("qwen3_5_moe", d_model=72, d_expert=20, d_shared=36, n_experts=7, n_layers=1,
                             layer_kinds=("full",))  # fmt: skip
        source: FolderSource | MemorySource = MemorySource(config, random_model(config, 4))
    else:
        source = made(tmp_path)
    plan = make_family_plan(source.config, Weights.named("bf16", kind), ctas=4)
    found = []
    for most in (1, 4 * 2 * source.config.d_expert * source.config.d_model, family_weights.AT_ONCE):
        monkeypatch.setattr(family_weights, "AT_ONCE", most)
        found.append(assemble(plan, source, "cpu").arena)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_formats_that_are_asked_for_and_what_is_refused(tmp_path: Path) -> None:
    source = gpt_oss(tmp_path)
    asked = {bits: family_formats(source, bits) for bits in (4, 8, 16)}
    assert [asked[bits].experts.name for bits in (4, 8, 16)] == ["mxfp4", "mxfp4", "bf16"]
    assert [asked[bits].usual.name for bits in (4, 8, 16)] == ["int4", "fp8", "bf16"]
    wide = tiny_config("gpt_oss", head_dim=32, n_experts=600, experts_per_token=4)
    with pytest.raises(FulgurError, match="4 of 600 experts: not supported on the GPU"):
        make_family_plan(wide, Weights.named("bf16"))
    plan = make_family_plan(tiny_config("qwen3_5", head_dim=32), Weights.named("bf16"), ctas=4)
    assert state_slots(plan, 1 << 34) == (8, 32) and state_slots(plan, 20 * plan.slot_bytes) == (1, 3)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The emulator in place of the GPU that folders are opened on."""
    emulated_family.install(monkeypatch, folder)
    monkeypatch.setattr(opening, "usable", lambda _: emulated_gpu.GPU)
    monkeypatch.setattr(opening, "assemble", lambda plan, source, _: assemble(plan, source, "cpu"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


def test_a_folder_becomes_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """All of it as on a GPU, with the emulator in its place: chosen by name, sized by its memory, generating."""
    source = gpt_oss(tmp_path)
    tokenizer(tmp_path, source.config.vocab_size)
    install(monkeypatch, folder)
    engine, info = open_engine(EngineOptions(tmp_path, device="cuda:0", kv_tokens=256), max_draft=0, cost=None)
    assert info.runtime == "cuda" and "general, bf16" in info.isa and info.kv_tokens == 256
    engine.submit(GenerateRequest([5, 6, 7], SamplingParams(max_tokens=2, ignore_eos=True)))
    made = []
    while engine.busy:
        made += [event.token for event in engine.step() if isinstance(event, Token)]
    assert made[0] == int(FloatModel(source).logits([5, 6, 7])[-1].argmax()) and len(made) == 2
    engine.close()


@pytest.mark.parametrize("promised", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_a_drafting_head_is_opened_where_it_is_there_and_wanted(
    promised: bool, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """Whatever the config says. Without drafts nobody wants it, and it takes neither weights nor cache."""
    config = tiny_config("qwen3_5", n_layers=2, layer_kinds=("delta", "full"), draft_vocab=200)
    stored: Stored = {
        name: ("F32", value) for name, value in random_model(config, 2).items() if there or not name.startswith("mtp.")
    }
    said = config if promised else replace(config, draft_vocab=0)
    write(tmp_path, said, stored, {})
    tokenizer(tmp_path, config.vocab_size)
    install(monkeypatch, folder)
    options, found = EngineOptions(tmp_path, device="cuda:0", kv_tokens=256), []
    for most in (8, 0):
        engine, info = open_engine(options, max_draft=most, cost=None)
        assert (engine.runtime.drafting is not None) == (there and most > 0)
        engine.submit(GenerateRequest([5, 6, 7], SamplingParams(max_tokens=6, ignore_eos=True)))
        made = []
        while engine.busy:
            made += [event.token for event in engine.step() if isinstance(event, Token)]
        found.append((made, info.weight_bytes, info.kv_bytes))
        engine.close()
    assert found[0][0] == found[1][0] and len(found[0][0]) == 6
    assert (found[0][1] > found[1][1]) == (found[0][2] > found[1][2]) == there
