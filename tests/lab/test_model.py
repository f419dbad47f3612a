from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from fulgur.model.quantise import dequantise
from fulgur.model.quantise import quantise as engine_quantise
from lab.train import attention
from lab.train.model import Model, fake_quantise
from lab.train.optim import Optimiser, decay, orthogonalise, warm_then_stable
from lab.train.prune import prune
from lab.train.shapes import SHAPES, shape
from lab.train.streams import Mixture, Stream


def test_shapes_are_as_announced() -> None:
    assert 55e6 < shape("60M").parameters < 65e6 and 27e6 < shape("30M").parameters < 33e6
    for config in SHAPES.values():
        assert not {config.d_model % 64, config.q_rows % 64, config.d_ffn % 64} - {0}


@pytest.mark.parametrize("bits", [4, 8])
def test_training_rounds_as_the_engine_does(bits: int) -> None:
    weight = torch.randn(48, 192, generator=torch.Generator().manual_seed(bits)) * 0.1
    weight[3] = 0
    wanted = dequantise(engine_quantise(weight.numpy(), bits, 64))
    assert np.allclose(fake_quantise(weight, bits, torch.ones(())).numpy(), wanted, atol=1e-7)
    assert torch.equal(fake_quantise(weight, bits, torch.zeros(())), weight)


def test_gradients_go_straight_through() -> None:
    weight = torch.randn(4, 64, requires_grad=True)
    factor = torch.randn(4, 64)
    (fake_quantise(weight, 4, torch.ones(())) * factor).sum().backward()
    assert weight.grad is not None and torch.equal(weight.grad, factor)


@pytest.mark.parametrize("size", [(3, 64, 64), (2, 96, 32), (2, 32, 96)])
def test_updates_are_nearly_orthogonal(size: tuple[int, ...]) -> None:
    values = torch.linalg.svdvals(orthogonalise(torch.randn(size, generator=torch.Generator().manual_seed(0))))
    # A square random matrix has a few directions of almost nothing: five iterations do not lift those to 1.
    assert values.quantile(0.1) > 0.5 and values.max() < 1.3


def test_every_parameter_is_trained() -> None:
    model = Model(shape("toy-small"))
    optimiser = Optimiser(model, matrix_rate=1e-2, vector_rate=1e-2, weight_decay=0.0)
    tokens = torch.randint(0, 512, (2, 33), generator=torch.Generator().manual_seed(0))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(2):  # the projections start at zero: the second step reaches what lies before them
        model(tokens[:, :-1], tokens[:, 1:], torch.ones(2, 32)).backward()
        optimiser.step(1.0)
        model.zero_grad(set_to_none=True)
    unchanged = [name for name, p in model.named_parameters() if torch.equal(p, before[name])]
    assert unchanged == []


def test_loss_weights_choose_what_counts() -> None:
    model = Model(shape("toy-small"))
    tokens = torch.randint(0, 512, (1, 17), generator=torch.Generator().manual_seed(0))
    one = torch.zeros(1, 16)
    one[0, 5] = 1.0
    probabilities = model.logits(tokens[:, :-1])[0, 5].log_softmax(-1)
    loss = model(tokens[:, :-1], tokens[:, 1:], one)
    assert loss.item() == pytest.approx(-probabilities[tokens[0, 6]].item(), abs=1e-5)


def test_schedule() -> None:
    assert [warm_then_stable(step, 4) for step in (0, 3, 100)] == [0.25, 1.0, 1.0]
    assert decay(0.0) == 1.0 and decay(1.0) == pytest.approx(0.02)


def test_pruning_a_model_whose_extra_parts_are_idle_changes_nothing() -> None:
    """Kept channels, heads and neurons are the ones that act: the pruned model computes the same."""
    small, large = Model(shape("toy-small"), seed=1), Model(shape("toy"), seed=2)
    with torch.no_grad():
        for parameter in large.parameters():
            parameter.zero_()
        for p in small.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.1)
        d, heads, ffn = small.config.d_model, torch.tensor([1, 3]), torch.arange(5, 5 + small.config.d_ffn)
        rows = (heads[:, None] * 64 + torch.arange(64)).flatten()
        channels = torch.arange(0, 2 * d, 2)
        large.embed[:, channels] = small.embed
        # Twice the channels, half of them silent: the mean square is halved, so the norm's weight makes up for it.
        large.final_norm[channels] = small.final_norm * 0.5**0.5
        for a, b in zip(large.layers, small.layers, strict=True):
            a.attn_norm[channels], a.ffn_norm[channels] = b.attn_norm * 0.5**0.5, b.ffn_norm * 0.5**0.5
            a.q_norm.copy_(b.q_norm), a.k_norm.copy_(b.k_norm)
            a.q_proj[rows[:, None], channels], a.o_proj[channels[:, None], rows] = b.q_proj, b.o_proj
            a.k_proj[:, channels], a.v_proj[:, channels] = b.k_proj, b.v_proj
            a.gate_proj[ffn[:, None], channels], a.up_proj[ffn[:, None], channels] = b.gate_proj, b.up_proj
            a.down_proj[channels[:, None], ffn] = b.down_proj
        tokens = torch.randint(0, 512, (2, 32), generator=torch.Generator().manual_seed(0))
        wanted = small.logits(tokens)
        assert torch.allclose(large.logits(tokens), wanted, atol=2e-4)
        pruned = Model(small.config)
        state = prune(large, small.config, tokens)
        for name in state:
            if name.endswith(("attn_norm", "ffn_norm", "final_norm")):
                state[name] *= 2**0.5
        pruned.load_state_dict(state)
        assert torch.allclose(pruned.logits(tokens), wanted, atol=2e-4)


def test_streams_show_every_row_once_a_pass_and_resume(toy: Path) -> None:
    def stream() -> Stream:
        return Stream(toy / "rows", "edits", torch.device("cpu"), seed=4)

    first, total = stream(), 0
    rows = []
    first.take(1)
    assert first._tokens is not None
    total = len(first._tokens)
    rows.append(first.take(total - 1)[0])
    assert first.epoch == 1 and first.cursor == 0
    second = stream()
    seen = second.take(total)[0]
    assert sorted(map(bytes, seen.numpy())) == sorted(map(bytes, second._tokens.numpy()))  # type: ignore[union-attr]
    third = stream()
    third.take(7)
    fourth = stream()
    fourth.restore(third.state())
    assert torch.equal(third.take(5)[0], fourth.take(5)[0])


def test_mixture_keeps_its_shares(toy: Path) -> None:
    code, edits = (Stream(toy / "rows", kind, torch.device("cpu")) for kind in ("code", "edits"))
    mixture = Mixture([(code, 0.25), (edits, 0.75)], {"code": 0.5})
    tokens, weights = mixture.batch(8)
    assert (code.cursor, edits.cursor) == (2, 6) and tokens.shape == weights.shape == (8, 257)


def test_pruning_leaves_out_the_layers_that_do_nothing() -> None:
    wide = shape("toy")
    large = Model(dataclasses.replace(wide, n_layers=5), seed=3)
    small = Model(dataclasses.replace(wide, n_layers=3))
    with torch.no_grad():
        for index in (0, 2, 4):  # a fresh layer is the identity; these act, and their sum predicts the tokens
            layer = large.layers[index]
            layer.down_proj.normal_(0, 0.3, generator=torch.Generator().manual_seed(index))
            layer.o_proj.normal_(0, 0.3, generator=torch.Generator().manual_seed(index))
        tokens = large.logits(torch.arange(24, 64)[None]).argmax(-1)
        for _ in range(6):  # a sequence that this model goes on with
            tokens = torch.cat((tokens[:, :1], large.logits(tokens).argmax(-1)[:, :-1]), 1)
        small.load_state_dict(prune(large, small.config, tokens))
        assert len(large.layers) == 5
        assert torch.allclose(small.logits(tokens), large.logits(tokens), atol=1e-5)


def test_every_attention_kernel_computes_the_same() -> None:
    config = dataclasses.replace(shape("toy"), max_context=32)
    try:
        assert attention.choose(config, torch.device("cpu"), torch.float32, rows=2) in (
            attention.PLAIN,
            *attention.OTHERS,
        )
        found = []
        for kernel in (attention.PLAIN, *attention.OTHERS):
            attention._use(kernel)
            found.append(attention._tried(config, torch.device("cpu"), torch.float32, 2)[0])
        for others in found[1:]:
            for a, b in zip(others, found[0], strict=True):
                assert torch.allclose(a, b, atol=1e-4)
    finally:
        attention.use_plain()
