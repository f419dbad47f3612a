"""Choosing tokens by the CUDA sources, in the emulator, beside the sampler of the host: the same tokens."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import emulated_sample
import numpy as np
import pytest
import torch
from emulated_gpu import GPU

from fulgur.engine.params import SamplingParams
from fulgur.engine.runtime import RowChoice
from fulgur.engine.sample import Sampler, Scratch
from fulgur.kernels.cuda.sampling import DeviceSampler

VOCAB = 2500  # two slices, the last one in part
CASES = [
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=1),
    SamplingParams(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=1.5, top_k=100, min_p=0.05),
    SamplingParams(temperature=1.2, top_k=1000),
    SamplingParams(temperature=1.0, top_p=0.3),
    SamplingParams(temperature=2.0, top_p=0.95, min_p=0.001),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(presence_penalty=1.5, frequency_penalty=0.5),
    SamplingParams(temperature=0.9, presence_penalty=-0.5, repetition_penalty=0.8, top_p=0.9),
    SamplingParams(logprobs=0),
    SamplingParams(temperature=1.0, logprobs=5, logit_bias=((3, 4.0), (2499, -100.0))),
    SamplingParams(temperature=0.6, top_k=64, top_p=0.5, logprobs=100),
]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, folder: Path) -> DeviceSampler:
    emulated_sample.install(monkeypatch, folder, lambda launch: launch())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    return DeviceSampler(VOCAB, 4, GPU, "cpu", SimpleNamespace(cuda_stream=0))


class Masked:
    """A grammar that allows some tokens."""

    given = False

    def __init__(self, allowed: np.ndarray) -> None:
        self.allowed = allowed

    def mask(self, out: np.ndarray) -> None:
        out[:] = self.allowed

    @property
    def bits(self) -> np.ndarray:
        padded = np.zeros(-(-VOCAB // 32) * 32, np.uint8)
        padded[:VOCAB] = self.allowed
        return np.packbits(padded, bitorder="little").view(np.uint32)


def rows(noise: np.random.Generator, kind: int) -> np.ndarray:
    logits = noise.normal(0, (0.3, 3.0, 1.0)[kind], (3, VOCAB)).astype(np.float32)
    return np.round(logits * 2) / 2 if kind == 2 else logits  # ties at every border


@pytest.mark.parametrize(("case", "kind"), [(case, case % 3) for case in range(len(CASES))] + [(4, 2), (6, 2), (13, 2)])
def test_the_host_chooses_the_same(device: DeviceSampler, case: int, kind: int) -> None:
    """Three rows of one sequence, the later ones behind a draft; then the next step, with what was chosen."""
    params, noise = CASES[case], np.random.default_rng(100 * case + kind)
    sampler = Sampler(params, case, Scratch(VOCAB, device_samples=True), [5, 6, 7])
    position = 10
    for _ in range(2 if params.penalised else 1):
        logits, draft = rows(noise, kind), noise.integers(0, 50, 2).tolist()
        masks = [None, *(Masked(noise.random(VOCAB) < share) for share in (0.5, 0.002))]
        bits = [None if mask is None else mask.bits for mask in masks]
        sampling = sampler.on_device
        assert sampling is not None
        choices = [(i, RowChoice(sampling, position + i, draft[:i], bits[i])) for i in range(3)]
        held = torch.from_numpy(logits)
        device.choose(choices, held.data_ptr())
        tokens, told = device.chosen(choices)
        for i in range(3):
            expected, logprob = sampler.choose(logits[i], position + i, masks[i])
            assert tokens[i] == expected
            if logprob is None:
                assert told[i] is None
            else:
                found = told[i]
                assert found is not None and found[0] == pytest.approx(logprob.logprob, abs=2e-5)
                assert [token for token, _ in found[1]] == [token for token, _ in logprob.top]
                assert [v for _, v in found[1]] == pytest.approx([v for _, v in logprob.top], abs=2e-5)
            if i < 2:
                sampler.note(draft[i])
        position += 3
    if sampling.history is not None:  # the device's copy lacks what it was not told of yet
        copy = sampling.history.device.numpy().view(np.uint32).copy()
        for token in sampling.history.pending:
            copy[token] = (copy[token] + 1) | (1 << 31)
        assert np.array_equal(copy, sampling.history.held)


def test_logits_that_are_not_numbers_give_some_token(device: DeviceSampler) -> None:
    held = torch.full((2, VOCAB), float("nan"))
    for params in (SamplingParams(), CASES[2], CASES[7]):
        sampling = Sampler(params, 0, Scratch(VOCAB, device_samples=True), []).on_device
        assert sampling is not None
        device.choose([(1, RowChoice(sampling, 3))], held.data_ptr())
        assert device.chosen([(1, None)])[0] == [0]
