"""Cuts a smaller model out of a larger one: keeps the layers, channels, heads and neurons that matter most."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from fulgur.errors import FulgurError
from fulgur.model.config import ModelConfig
from lab.train.model import Model, rms_norm


@torch.no_grad()
def importance(model: Model, tokens: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Mean size of each residual channel (summed over layers), and per layer of each head's output and each neuron."""
    caught: dict[int, Tensor] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs, i=i: caught.__setitem__(i, inputs[0]))
        for i, layer in enumerate(model.layers)
    ]
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
        model.logits(tokens)
    for hook in hooks:
        hook.remove()
    eps = model.config.norm_eps
    channels = torch.zeros(model.config.d_model, device=tokens.device)
    heads, neurons = [], []
    for i, layer in enumerate(model.layers):
        h = rms_norm(caught[i], layer.attn_norm, eps)
        channels += h.abs().mean((0, 1))
        # A head's importance is how much its output projection moves the residual; its inputs are normalised alike.
        heads.append(layer.o_proj.unflatten(1, (-1, model.config.head_dim)).square().sum((0, 2)).sqrt())
        # The block's input stands in for the FFN's: they differ by one attention update.
        f = rms_norm(caught[i], layer.ffn_norm, eps)
        active = functional.silu(functional.linear(f, layer.gate_proj)) * functional.linear(f, layer.up_proj)
        neurons.append(active.abs().mean((0, 1)) * layer.down_proj.norm(dim=0))
    return channels, heads, neurons


@torch.no_grad()
def prune(model: Model, target: ModelConfig, tokens: Tensor) -> dict[str, Tensor]:
    """Return weights for `target`, taken from `model`; `tokens` are a few rows to measure activity on."""
    source = model.config
    if source.n_kv_heads != target.n_kv_heads or source.head_dim != target.head_dim:
        raise FulgurError("pruning keeps the key/value heads and the head size; both shapes must have the same")
    layers = model.layers
    if target.n_layers < source.n_layers:
        model.layers = best_layers(model, target.n_layers, tokens[:4])
    try:
        return _cut(model, target, tokens)
    finally:
        model.layers = layers


@torch.no_grad()
def best_layers(model: Model, count: int, tokens: Tensor) -> nn.ModuleList:
    """Of all choices of `count` layers including the first and the last, the one that predicts the tokens best."""
    layers = list(model.layers)
    best, least = model.layers, float("inf")
    for inner in itertools.combinations(layers[1:-1], count - 2):
        model.layers = nn.ModuleList([layers[0], *inner, layers[-1]])
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
            loss = float(model(tokens[:, :-1], tokens[:, 1:], torch.ones_like(tokens[:, 1:], dtype=torch.float32)))
        if loss < least:
            best, least = model.layers, loss
    return best


def _cut(model: Model, target: ModelConfig, tokens: Tensor) -> dict[str, Tensor]:
    """Keep the layers, with fewer channels, heads and neurons."""
    source = model.config
    channels, heads, neurons = importance(model, tokens)
    keep = channels.topk(target.d_model).indices.sort().values
    group, wanted = source.n_heads // source.n_kv_heads, target.n_heads // target.n_kv_heads
    inside = torch.arange(source.head_dim, device=keep.device)
    state: dict[str, Tensor] = {"embed": model.embed[:, keep], "final_norm": model.final_norm[keep]}
    for i, layer in enumerate(model.layers):
        # Every key/value head keeps the same number of heads.
        grouped = heads[i].unflatten(0, (source.n_kv_heads, group)).topk(wanted, dim=1).indices.sort(dim=1).values
        chosen = (grouped + torch.arange(source.n_kv_heads, device=keep.device)[:, None] * group).flatten()
        rows = (chosen[:, None] * source.head_dim + inside).flatten()
        ffn = neurons[i].topk(target.d_ffn).indices.sort().values
        state |= {
            f"layers.{i}.attn_norm": layer.attn_norm[keep],
            f"layers.{i}.ffn_norm": layer.ffn_norm[keep],
            f"layers.{i}.q_norm": layer.q_norm,
            f"layers.{i}.k_norm": layer.k_norm,
            f"layers.{i}.q_proj": layer.q_proj[rows][:, keep],
            f"layers.{i}.k_proj": layer.k_proj[:, keep],
            f"layers.{i}.v_proj": layer.v_proj[:, keep],
            f"layers.{i}.o_proj": layer.o_proj[keep][:, rows],
            f"layers.{i}.gate_proj": layer.gate_proj[ffn][:, keep],
            f"layers.{i}.up_proj": layer.up_proj[ffn][:, keep],
            f"layers.{i}.down_proj": layer.down_proj[keep][:, ffn],
        }
    return {name: tensor.contiguous().clone() for name, tensor in state.items()}
