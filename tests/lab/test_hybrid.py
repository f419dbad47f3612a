"""The hybrid in torch computes what the reference computes, its drafting head too, and it learns and travels."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_run import OPTIONS, losses

from fulgur.engine.load import open_tokenizer
from fulgur.eval.tasks import read_tasks
from fulgur.kernels.cpu.native import Runtime
from fulgur.kernels.reference import FloatModel
from fulgur.model.folder import FolderSource
from fulgur.model.random import MemorySource
from fulgur.model.weights import load
from lab.train import acceptance, drafting, export, hybrid
from lab.train.delta import delta_rule, unit_inverse
from lab.train.hybrid_model import GUESSES, Hybrid
from lab.train.model import hf_name
from lab.train.optim import Optimiser
from lab.train.shapes import shape

STEPS = 12


def lively(seed: int = 0) -> Hybrid:
    """Random weights in every part: fresh blocks are the identity and would hide faults."""
    model = Hybrid(shape("toy-hybrid"), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return model


def reference(model: Hybrid) -> FloatModel:
    tensors = {hf_name(name): p.detach().numpy() for name, p in model.named_parameters()}
    return FloatModel(MemorySource(model.config, tensors))


def some_tokens(count: int) -> torch.Tensor:
    return torch.randint(0, 512, (2, count), generator=torch.Generator().manual_seed(count))


def recurrence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    share = v.shape[1] // k.shape[1]
    q, k = q.repeat_interleave(share, 1), k.repeat_interleave(share, 1)
    state, out = q.new_zeros(*v.shape[:2], q.shape[-1], v.shape[-1]), []
    for t in range(v.shape[2]):
        state = state * decay[:, :, t, None, None].exp()
        error = (v[:, :, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, :, t])) * beta[:, :, t, None]
        state = state + k[:, :, t, :, None] * error[:, :, None, :]
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
    return torch.stack(out, 2)


def test_chunks_and_their_gradients_are_those_of_the_recurrence() -> None:
    torch.manual_seed(1)
    q, k = (torch.nn.functional.normalize(torch.randn(2, 2, 150, 16), dim=-1) for _ in range(2))
    k[:, :, 70:100] = k[:, :, 70:71]  # a run of equal keys, as padding makes: here a power series would explode
    inputs = [q, k, torch.randn(2, 4, 150, 8), -torch.rand(2, 4, 150) * 0.3, torch.rand(2, 4, 150)]
    found, wanted = [], []
    for rule, results in ((delta_rule, found), (recurrence, wanted)):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = rule(*leaves)
        results += [out, *torch.autograd.grad(out, leaves, torch.cos(out.detach()))]
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(a, b, atol=2e-4 * b.detach().abs().max().item())


def test_the_worst_triangle_is_inverted() -> None:
    ones = torch.ones(1, 64, 64).tril(-1)
    inverse = unit_inverse(ones)
    assert torch.allclose(inverse @ (torch.eye(64) + ones), torch.eye(64)[None], atol=1e-5)


def test_logits_and_first_guesses_are_the_reference_s() -> None:
    model, tokens = lively(), some_tokens(90)
    truth = reference(model)
    with torch.no_grad():
        weight = model.rounded_embedding()
        embedded, hidden = model.hidden(tokens, weight)
        logits, first = model.logits(tokens), model.guesses(embedded, hidden)[0] @ weight[: model.config.draft_vocab].T
    for row in range(2):
        assert np.abs(truth.logits(tokens[row]) - logits[row].numpy()).max() < 1e-3
        assert np.abs(truth.draft_logits(tokens[row]) - first[row, 1:].numpy()).max() < 1e-3


def test_later_guesses_are_the_reference_s() -> None:
    """At each slot a draft that has guessed the true tokens so far."""
    model, tokens, length = lively(2), some_tokens(40), 40
    truth = reference(model)
    with torch.no_grad():
        found = model.guesses(*model.hidden(tokens, model.rounded_embedding()))
    ids = tokens[0].numpy()
    for last in (3, 17, length - GUESSES):  # the last token that is certain
        network, (rows, owner, table) = truth._network(length)
        embedded = truth._embed[ids]
        hidden = network.hidden(embedded[: last + 1], rows[: last + 1], owner[: last + 1], table)
        seen = slice(1, last + 1)
        made = network.predict(embedded[seen], hidden[:-1], rows[seen], owner[seen], table)[-1:]
        for n in range(1, GUESSES):
            at = slice(last + n, last + n + 1)
            made = network.predict(embedded[at], made, rows[at], owner[at], table)
            assert np.abs(made[0] - found[n][0, last + n].numpy()).max() < 1e-3, (last, n)


def test_every_part_is_trained() -> None:
    model = Hybrid(shape("toy-hybrid"))
    optimiser = Optimiser(model, matrix_rate=1e-2, vector_rate=1e-2, weight_decay=0.0)
    tokens = some_tokens(65)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(3):
        model(tokens[:, :-1], tokens[:, 1:], torch.ones(2, 64)).backward()
        optimiser.step(1.0)
        model.zero_grad(set_to_none=True)
    assert [name for name, p in model.named_parameters() if torch.equal(p, before[name])] == []


@pytest.fixture(scope="module")
def trained(toy: Path) -> Path:
    """The toy run with a hybrid trained on it, cut off once and taken up again."""
    options = ["--run", str(toy), "--shape", "toy-hybrid", "--steps", str(STEPS), "--warmup", "2", *OPTIONS]
    hybrid.main([*options, "--stop-after", "5"])
    hybrid.main(options)
    return toy


def test_the_loss_falls_and_a_cut_off_run_goes_on(trained: Path) -> None:
    found = losses(trained, "hybrid")
    assert sorted(found) == list(range(1, STEPS + 1))
    rows = [json.loads(line) for line in (trained / "hybrid" / "losses.jsonl").read_text().splitlines()]
    assert any(row.get("resumed_at") == 5 for row in rows)
    assert rows[-1]["heldout_code"] < 0.95 * math.log(512)  # the loss of steps differs with their few rows
    assert (trained / "hybrid" / "done").exists()


def test_pieces_that_came_back_can_be_trained_further(trained: Path, tmp_path: Path) -> None:
    export.make_pieces(trained, "hybrid", tmp_path, "bf16")
    model, wanted = Hybrid(shape("toy-hybrid"), seed=9), hybrid.restored(trained, torch.device("cpu"))
    hybrid.load_pieces(model, tmp_path)
    for (name, a), (_, b) in zip(model.named_parameters(), wanted.named_parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-2 if a.ndim == 2 else 0, atol=1e-6), name


def test_shares_of_guesses_that_are_right() -> None:
    said = torch.tensor([[5, 6, 7, 8]])
    text = torch.tensor([[5, 6, 9, 8]])  # the text leaves what the model says at its third token
    guessed = [torch.tensor([[5, 6, 0, 8]]), torch.tensor([[0, 6, 7, 8]]), torch.tensor([[0, 0, 7, 8]])]
    found = acceptance.count(said, guessed, text, torch.ones(1, 4, dtype=torch.bool))
    # First: 3 of 4. Behind the right ones that the text follows: slots 1 and 2, both right. Third: slot 2 is right.
    assert found.tolist() == [[4, 3], [2, 2], [1, 1]]


def test_the_packed_model_drafts_in_the_engine(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's guesses are those of the model that was trained, and its text is the same with and without them."""
    monkeypatch.setattr(acceptance, "ROWS", 2)
    monkeypatch.setattr(acceptance, "WRITTEN", 6)
    monkeypatch.setattr(drafting, "CODE_ANSWER", 24)
    shares = acceptance.measure(trained, torch.device("cpu"))
    assert {len(found) for found in shares.values()} == {GUESSES} and "greedy" in shares
    pieces, folder = tmp_path / "pieces", tmp_path / "packed"
    export.make_pieces(trained, "hybrid", pieces, "bf16")
    config = export.pack(pieces, "toy-hybrid-bf16", folder, trained / "tokenizer.json", head_bits=4)
    assert config.family == "qwen3_5" and config.draft_vocab == 256
    tokens = some_tokens(80)[:1]
    _, guessed = acceptance.said_and_guessed(hybrid.restored(trained, torch.device("cpu")), tokens)
    runtime = Runtime(load(folder), kv_blocks=8, threads=1)
    table, same = np.arange(8, dtype=np.int32)[None], []
    for at in range(1, 79):
        rows = np.array([at - 1], np.int32)
        runtime.step(tokens[0, rows].numpy().astype(np.int32), rows, rows * 0, table, rows[:0])
        same.append(runtime.draft(int(tokens[0, at]), at, 0, table, 1)[0] == int(guessed[0][0, at]))
    assert np.mean(same) > 0.8  # activations are rounded to 8 bits: a close one tips over
    found = dict(drafting.measure(drafting.on_cpu(folder, 1), open_tokenizer(folder), read_tasks(), 1))
    assert {name.split(".")[0] for name in found} == {"acceptance", "tok_s", "drafted", "kept", "tokens", "changed"}
    assert not any(value for name, value in found.items() if name.startswith("changed."))


def test_a_bare_gpu_machine_can_measure_drafts(trained: Path, tmp_path: Path) -> None:
    """It has no compiled extension and no msgspec; and the folder without the head is a model without one."""
    missing = "'msgspec', 'aiohttp', 'llguidance', 'fulgur.kernels.cpu._native'"
    code = f"import sys; sys.modules.update(dict.fromkeys([{missing}])); import lab.train.drafting"
    subprocess.run([sys.executable, "-c", code + ", fulgur.kernels.cuda.open"], check=True)
    export.make_pieces(trained, "hybrid", tmp_path, "bf16")
    export.float_folder(tmp_path, "toy-hybrid-bf16", tmp_path / "float")
    drafting.without_head(tmp_path / "float", tmp_path / "plain")
    whole, plain = FolderSource(tmp_path / "float"), FolderSource(tmp_path / "plain")
    assert whole.config.draft_vocab == 256 and plain.config == replace(whole.config, draft_vocab=0)
    assert np.array_equal(FloatModel(whole).logits([5, 6, 7]), FloatModel(plain).logits([5, 6, 7]))


def test_a_compiler_that_fails_is_left_out(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "rows").symlink_to(toy / "rows")

    def broken(self: Hybrid) -> None:
        def refuse(*_: object) -> None:
            raise RuntimeError("no kernel for this")

        for layer in self.layers:
            layer.compile(backend=refuse)

    monkeypatch.setattr(Hybrid, "compile_parts", broken)
    options = ["--device", "cpu", "--compile", "--rows", "4", "--micro", "4", "--steps", "1", "--wait", "1"]
    try:
        hybrid.main(["--run", str(run), "--shape", "toy-hybrid", *options])
    finally:
        torch.compiler.set_stance("default")
    rows = [json.loads(line) for line in (run / "hybrid" / "losses.jsonl").read_text().splitlines()]
    assert rows[0]["then"] == "without_compiler" and "no kernel" in rows[0]["failed"]
    assert (run / "hybrid" / "done").exists()
