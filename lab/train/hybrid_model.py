"""A hybrid in torch: Qwen3.5's mathematics (gated delta nets, gated attention, norms of 1 + w) with a drafting head.

The head (MTP) is trained the way it drafts. Its first guess reads the model's hidden states; the next ones read the
head's own output instead, and attend to the true slots before the draft and to the guessed ones inside it. It learns
what the model would say, not what the text says, because a draft counts only if the model agrees. Parts are compiled
one by one: layers of a kind share a graph, so compiling takes seconds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fulgur.model.config import ModelConfig
from fulgur.model.family import DELTA
from lab.train import attention
from lab.train.delta import delta_rule
from lab.train.model import Model, fake_quantise, rms_norm, rotate

GUESSES = 3  # tokens per draft that training follows
DRAFT_WEIGHT = 0.2  # of the guesses' loss; the head's own matrices do not feel it (Muon), the layers below do
DRAFT_ROWS = 2  # the head trains on one of this many rows
SLOWEST, FASTEST = 1e-3, 0.2  # decays per token that the heads of a delta net begin with

KeysValues = tuple[Tensor, Tensor]


class Part(nn.Module):
    """What every kind of layer has: norms of 1 + w, and a gated feed-forward network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        d, ffn = config.d_model, config.d_ffn
        self.attn_norm, self.ffn_norm = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d))
        self.gate_proj = nn.Parameter(torch.empty(ffn, d))
        self.up_proj = nn.Parameter(torch.empty(ffn, d))
        self.down_proj = nn.Parameter(torch.empty(d, ffn))

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, 1 + weight, self.config.norm_eps)

    def feed_forward(self, x: Tensor, strength: Tensor) -> Tensor:
        gate, up = product(self.norm(x, self.ffn_norm), strength, self.gate_proj, self.up_proj).chunk(2, -1)
        return x + product(functional.silu(gate) * up, strength, self.down_proj)


def product(x: Tensor, strength: Tensor, *weights: Tensor) -> Tensor:
    """One product with several matrices, which are rounded as far as `strength` says."""
    rounded = [fake_quantise(weight, 4, strength) for weight in weights]
    return functional.linear(x, torch.cat(rounded) if len(rounded) > 1 else rounded[0])


class DeltaLayer(Part):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        assert config.delta is not None
        shape, d = config.delta, config.d_model
        self.shape = shape
        self.qkv_proj = nn.Parameter(torch.empty(shape.channels, d))
        self.z_proj = nn.Parameter(torch.empty(shape.values, d))
        self.b_proj = nn.Parameter(torch.empty(shape.v_heads, d))
        self.a_proj = nn.Parameter(torch.empty(shape.v_heads, d))
        taps = torch.zeros(shape.channels, 1, shape.taps)
        taps[:, :, -1] = 1.0  # the token itself
        self.conv = nn.Parameter(taps)
        self.a_log = nn.Parameter(torch.zeros(shape.v_heads))
        rates = torch.logspace(math.log10(SLOWEST), math.log10(FASTEST), shape.v_heads)
        self.dt_bias = nn.Parameter(rates.expm1().log())  # softplus of this is the decay
        self.delta_norm = nn.Parameter(torch.ones(shape.v_dim))
        self.out_proj = nn.Parameter(torch.empty(d, shape.values))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, strength: Tensor) -> Tensor:
        shape, tokens = self.shape, x.shape[1]
        h = self.norm(x, self.attn_norm)
        projected = product(h, strength, self.qkv_proj, self.z_proj)
        mixed, z = projected.split((shape.channels, shape.values), -1)
        b, a = functional.linear(h, torch.cat((self.b_proj, self.a_proj))).float().chunk(2, -1)
        decay = -self.a_log.exp() * functional.softplus(a + self.dt_bias)
        before = functional.pad(mixed, (0, 0, shape.taps - 1, 0))
        taps = [before[:, i : i + tokens].float() * self.conv[:, 0, i] for i in range(shape.taps)]
        mixed = functional.silu(sum(taps[1:], taps[0]))
        q, k, v = (
            part.unflatten(-1, (-1, width)).transpose(1, 2)
            for part, width in zip(
                mixed.split((shape.keys, shape.keys, shape.values), -1),
                (shape.k_dim, shape.k_dim, shape.v_dim),
                strict=True,
            )
        )
        q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in (q, k))
        out = delta_rule(
            (q * shape.k_dim**-0.5).to(z.dtype),
            k.to(z.dtype),
            v.to(z.dtype),
            decay.transpose(1, 2),
            b.sigmoid().transpose(1, 2),
        )
        out = rms_norm(out, self.delta_norm, self.config.norm_eps).transpose(1, 2).flatten(2)
        x = x + product(out * functional.silu(z.float()), strength, self.out_proj)
        return self.feed_forward(x, strength)


class FullLayer(Part):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        d, q, kv = config.d_model, config.q_rows, config.kv_rows
        self.q_proj = nn.Parameter(torch.empty(2 * q, d))  # a head's query, then its gate
        self.k_proj = nn.Parameter(torch.empty(kv, d))
        self.v_proj = nn.Parameter(torch.empty(kv, d))
        self.o_proj = nn.Parameter(torch.empty(d, q))
        self.q_norm = nn.Parameter(torch.zeros(config.head_dim))
        self.k_norm = nn.Parameter(torch.zeros(config.head_dim))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, strength: Tensor) -> Tensor:
        q, k, v, gate = self.project(x, cos, sin, strength)
        return self.finish(x, attention.attend(q, k, v), gate, strength)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor, strength: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return queries, keys and values [batch, heads, tokens, head_dim], and the gates of the attention output."""
        c = self.config
        made = product(self.norm(x, self.attn_norm), strength, self.q_proj, self.k_proj, self.v_proj)
        both, k, v = (
            part.unflatten(-1, (-1, width)).transpose(1, 2)
            for part, width in zip(
                made.split((2 * c.q_rows, c.kv_rows, c.kv_rows), -1),
                (2 * c.head_dim, c.head_dim, c.head_dim),
                strict=True,
            )
        )
        q, gate = both.chunk(2, -1)
        q = self._rotate(self.norm(q, self.q_norm), cos, sin).to(v.dtype)
        return q, self._rotate(self.norm(k, self.k_norm), cos, sin).to(v.dtype), v, gate

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rotated = self.config.rotated
        return torch.cat((rotate(x[..., :rotated], cos, sin), x[..., rotated:]), -1)

    def finish(self, x: Tensor, attended: Tensor, gate: Tensor, strength: Tensor) -> Tensor:
        gated = (attended * gate.sigmoid()).transpose(1, 2).flatten(2)
        return self.feed_forward(x + product(gated, strength, self.o_proj), strength)


class Draft(nn.Module):
    """The drafting head. Slot t holds token t and the hidden state of t - 1, so slot 0 is empty."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d = config.d_model
        self.fc = nn.Parameter(torch.empty(d, 2 * d))
        self.embed_norm, self.hidden_norm, self.final_norm = (nn.Parameter(torch.zeros(d)) for _ in range(3))
        self.layer = FullLayer(config)

    def forward(
        self, embedded: Tensor, before: Tensor, earlier: list[KeysValues], cos: Tensor, sin: Tensor, strength: Tensor
    ) -> tuple[Tensor, KeysValues]:
        """Return the next guess at every slot. `before` is shifted by one: the hidden states, or the previous guess at
        slot t - 1. `earlier` are the keys and values of the previous guesses."""
        layer = self.layer
        both = layer.norm(embedded, self.embed_norm), layer.norm(before, self.hidden_norm)
        x = product(torch.cat(both, -1), strength, self.fc).to(embedded.dtype)
        q, k, v, gate = layer.project(x, cos, sin, strength)
        if earlier:
            attended = attend_recycled(q, [*earlier, (k, v)])
        else:
            attended = functional.pad(attention.attend(q[:, :, 1:], k[:, :, 1:], v[:, :, 1:]), (0, 0, 1, 0))
        return layer.norm(layer.finish(x, attended, gate, strength), self.final_norm), (k, v)


def attend_recycled(q: Tensor, steps: list[KeysValues]) -> Tensor:
    """Attention of the n-th guess, n > 1: to the true slots 1 to t - n + 1, and to the slots that its draft filled."""
    group, n, tokens = q.shape[1] // steps[0][0].shape[1], len(steps), q.shape[2]
    wide = [(k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)) for k, v in steps]
    q = q * q.shape[-1] ** -0.5
    at = torch.arange(tokens, device=q.device)
    true = (at[None, :] >= 1) & (at[None, :] <= at[:, None] - n + 1)
    scores = (q @ wide[0][0].mT).float().masked_fill(~true, float("-inf"))
    own = [(k.roll(n - m, 2), v.roll(n - m, 2)) for m, (k, v) in enumerate(wide[1:], 2)]
    extra = torch.stack([(q.float() * k.float()).sum(-1) for k, _ in own], -1)
    top = torch.maximum(scores.amax(-1, keepdim=True), extra.amax(-1, keepdim=True)).detach()
    weight, more = (scores - top).exp(), (extra - top).exp()
    out = weight.to(q.dtype) @ wide[0][1]
    total = out + sum((more[..., i : i + 1] * v for i, (_, v) in enumerate(own)), torch.zeros((), device=q.device))
    return (total / (weight.sum(-1, keepdim=True) + more.sum(-1, keepdim=True))).to(q.dtype)


def score(hidden: Tensor, weight: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of the cross-entropy, and the tokens that the model itself would say."""
    logits = functional.linear(hidden, weight).float().flatten(0, 1)
    loss = functional.cross_entropy(logits, targets.flatten(), reduction="none")
    return (loss * weights.flatten()).sum(), logits.detach().argmax(-1).view(targets.shape)


class Hybrid(Model):
    def __init__(self, config: ModelConfig, *, seed: int = 0) -> None:
        super().__init__(config, seed=seed)
        self.score = score

    def build(self) -> None:
        config = self.config
        self.layers = nn.ModuleList(DeltaLayer(config) if k == DELTA else FullLayer(config) for k in config.kinds)
        self.final_norm = nn.Parameter(torch.zeros(config.d_model))
        self.draft = Draft(config)

    def compile_parts(self) -> None:
        """Compile each kind of layer once, the head once and the loss once."""
        for part in (*self.layers, self.draft):
            part.compile(dynamic=False)
        self.score = torch.compile(score, dynamic=False)

    def hidden(self, tokens: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embedded tokens, and what the output head reads."""
        embedded = functional.embedding(tokens, weight)
        if embedded.is_cuda:  # under autocast: halves the traffic of the residual
            embedded = embedded.bfloat16()
        x = embedded
        for layer in self.layers:
            x = layer(x, *self.angles(tokens), self.strength)
        return embedded, rms_norm(x, 1 + self.final_norm, self.config.norm_eps).to(embedded.dtype)

    def angles(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]

    def rounded_embedding(self) -> Tensor:
        return fake_quantise(self.embed, self.head_bits, self.strength)

    def logits(self, tokens: Tensor) -> Tensor:
        weight = self.rounded_embedding()
        return functional.linear(self.hidden(tokens, weight)[1], weight)

    def guesses(self, embedded: Tensor, hidden: Tensor) -> list[Tensor]:
        """Return what the head makes of each slot as the first, second and third guess of a draft after the true
        tokens; the n-th is meaningful from slot n on."""
        found: list[Tensor] = []
        earlier: list[KeysValues] = []
        for _ in range(GUESSES):
            before = functional.pad((found[-1] if found else hidden)[:, :-1], (0, 0, 1, 0))
            made, slots = self.draft(embedded, before, earlier, *self.angles(embedded), self.strength)
            found.append(made.to(embedded.dtype))
            earlier = [*earlier, slots]
        return found

    def forward(self, tokens: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of the model's own loss; with gradients enabled, the head's guesses count too."""
        weight = self.rounded_embedding()
        embedded, hidden = self.hidden(tokens, weight)
        loss, said = self.score(hidden, weight, targets, weights)
        if not torch.is_grad_enabled():
            return loss
        some, vocabulary = slice(None, None, DRAFT_ROWS), self.config.draft_vocab
        said = said[some].clone()
        counted = weights[some] * (said < vocabulary)
        for n, guess in enumerate(self.guesses(embedded[some], hidden[some]), 1):
            late = counted * (torch.arange(counted.shape[1], device=counted.device) >= n)
            wrong, _ = self.score(guess, weight[:vocabulary], said.clamp_max(vocabulary - 1), late)
            loss = loss + DRAFT_WEIGHT * DRAFT_ROWS / GUESSES * wrong
        return loss
