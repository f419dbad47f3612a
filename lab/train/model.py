"""The model in torch: the mathematics of Qwen3 (RMSNorm, QK-norm, rotate-half RoPE, GQA, SwiGLU, tied head, no biases).

Weights can be rounded to their quantised values in the forward pass while gradients go straight through. How strongly
the rounding applies is a tensor (`strength`), not a flag, so that pretraining (0) and quantisation-aware annealing (1)
share one graph, which is compiled once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fulgur.model.config import ModelConfig
from lab.train import attention

GROUP = 64


def fake_quantise(weight: Tensor, bits: int, strength: Tensor) -> Tensor:
    """Move `weight` by `strength` towards its quantised value (symmetric groups of 64 columns, fp16 scales)."""
    limit = 7 if bits == 4 else 127
    grouped = weight.detach().float().unflatten(-1, (-1, GROUP))
    scale = (grouped.abs().amax(-1, keepdim=True) / limit).half().float()
    rounded = (grouped / scale.clamp_min(1e-12)).round().clamp(-8 if bits == 4 else -127, limit) * scale
    return weight + strength * (rounded.flatten(-2) - weight.detach())


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE, rotate-half convention; x is [batch, heads, tokens, head_dim]."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d, q, kv, ffn = config.d_model, config.q_rows, config.kv_rows, config.d_ffn
        self.config = config
        self.attn_norm = nn.Parameter(torch.ones(d))
        self.q_proj = nn.Parameter(torch.empty(q, d))
        self.k_proj = nn.Parameter(torch.empty(kv, d))
        self.v_proj = nn.Parameter(torch.empty(kv, d))
        self.o_proj = nn.Parameter(torch.empty(d, q))
        self.q_norm = nn.Parameter(torch.ones(config.head_dim))
        self.k_norm = nn.Parameter(torch.ones(config.head_dim))
        self.ffn_norm = nn.Parameter(torch.ones(d))
        self.gate_proj = nn.Parameter(torch.empty(ffn, d))
        self.up_proj = nn.Parameter(torch.empty(ffn, d))
        self.down_proj = nn.Parameter(torch.empty(d, ffn))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, strength: Tensor) -> Tensor:
        c = self.config
        batch, tokens, _ = x.shape

        def rounded(*weights: Tensor) -> Tensor:
            return (
                torch.cat([fake_quantise(w, 4, strength) for w in weights])
                if len(weights) > 1
                else fake_quantise(weights[0], 4, strength)
            )

        h = rms_norm(x, self.attn_norm, c.norm_eps)
        qkv = functional.linear(h, rounded(self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (
            part.unflatten(-1, (-1, c.head_dim)).transpose(1, 2)
            for part in qkv.split((c.q_rows, c.kv_rows, c.kv_rows), -1)
        )
        q = rotate(rms_norm(q, self.q_norm, c.norm_eps), cos, sin).to(v.dtype)
        k = rotate(rms_norm(k, self.k_norm, c.norm_eps), cos, sin).to(v.dtype)
        a = attention.attend(q, k, v)
        x = x + functional.linear(a.transpose(1, 2).reshape(batch, tokens, -1), rounded(self.o_proj))
        h = rms_norm(x, self.ffn_norm, c.norm_eps)
        gate, up = functional.linear(h, rounded(self.gate_proj, self.up_proj)).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, rounded(self.down_proj))


class Model(nn.Module):
    def __init__(self, config: ModelConfig, *, head_bits: int = 4, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.head_bits = head_bits
        self.embed = nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        self.build()
        self.register_buffer("strength", torch.zeros(()), persistent=False)
        half = config.rotated // 2
        frequency = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(config.max_context, dtype=torch.float64)[:, None] * frequency
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        self._initialise(seed)

    def build(self) -> None:
        """Create the parts between the embedding and the output head."""
        self.layers = nn.ModuleList(Layer(self.config) for _ in range(self.config.n_layers))
        self.final_norm = nn.Parameter(torch.ones(self.config.d_model))

    @torch.no_grad()
    def _initialise(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name == "embed":
                parameter.normal_(0, 0.02, generator=generator)
            elif name.endswith(("o_proj", "out_proj", "down_proj")):
                parameter.zero_()  # a block starts as the identity
            elif parameter.ndim == 2:
                parameter.normal_(0, 0.6 * parameter.shape[1] ** -0.5, generator=generator)

    def logits(self, tokens: Tensor) -> Tensor:
        weight = fake_quantise(self.embed, self.head_bits, self.strength)
        x = functional.embedding(tokens, weight)
        if (
            x.is_cuda
        ):  # under autocast: half the traffic of the residual; its sums round, the gradients of weights do not
            x = x.bfloat16()
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin, self.strength)
        return functional.linear(rms_norm(x, self.final_norm, self.config.norm_eps), weight)

    def forward(self, tokens: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of the cross-entropy over all positions (the caller divides)."""
        logits = self.logits(tokens).float()
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return (loss * weights.flatten()).sum()


# Our names -> Hugging Face's, as `fulgur.model` reads them.
_HF = {
    "attn_norm": "input_layernorm", "q_proj": "self_attn.q_proj", "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj", "o_proj": "self_attn.o_proj", "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "gate_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj", "down_proj": "mlp.down_proj", "qkv_proj": "linear_attn.in_proj_qkv",
    "z_proj": "linear_attn.in_proj_z", "b_proj": "linear_attn.in_proj_b", "a_proj": "linear_attn.in_proj_a",
    "conv": "linear_attn.conv1d", "delta_norm": "linear_attn.norm", "out_proj": "linear_attn.out_proj",
}  # fmt: skip
_BARE = {"a_log": "linear_attn.A_log", "dt_bias": "linear_attn.dt_bias"}  # these have no `.weight` suffix
_WHOLE = {
    "embed": "model.embed_tokens", "final_norm": "model.norm", "draft.fc": "mtp.fc", "draft.final_norm": "mtp.norm",
    "draft.embed_norm": "mtp.pre_fc_norm_embedding", "draft.hidden_norm": "mtp.pre_fc_norm_hidden",
}  # fmt: skip


def hf_name(name: str) -> str:
    if name in _WHOLE:
        return _WHOLE[name] + ".weight"
    place, _, part = name.rpartition(".")
    layer = "mtp.layers.0." if place == "draft.layer" else f"model.{place}."
    return layer + (_BARE[part] if part in _BARE else f"{_HF[part]}.weight")
