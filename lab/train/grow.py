"""Makes a deeper model from a shallower one: some layers are duplicated, and the second of a pair adds nothing yet.

The copy keeps the queries, keys, values, gates and ups; its output projections are zero, so the deeper model computes
what the shallower one did, and training finds a use for the copies (Wu et al., "LLaMA Pro", 2024).
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from fulgur.errors import FulgurError

_LAYER = re.compile(r"layers\.(\d+)\.(\w+)$")
OUTPUTS = ("o_proj", "down_proj")


def doubled(layers: int, target: int) -> list[int]:
    """Which of `layers` layers to duplicate to get `target`: spread evenly, neither the first nor the last."""
    more, inner = target - layers, layers - 2
    if not 0 <= more <= inner:
        raise FulgurError(f"{layers} layers cannot become {target}", hint=f"Choose at most {2 * layers - 2}.")
    return [1 + (2 * index + 1) * inner // (2 * more) for index in range(more)]


def deepen(weights: dict[str, Tensor], layers: int, target: int) -> dict[str, Tensor]:
    """Return the weights of a model of `target` layers, under the names of `lab.train.model`."""
    twice = set(doubled(layers, target))
    place, grown = 0, {name: value for name, value in weights.items() if not _LAYER.match(name)}
    for layer in range(layers):
        parts = {name.rpartition(".")[2]: weights[name] for name in weights if name.startswith(f"layers.{layer}.")}
        for copy in range(2 if layer in twice else 1):
            for part, value in parts.items():
                silent = copy and part in OUTPUTS
                grown[f"layers.{place}.{part}"] = torch.zeros_like(value) if silent else value.clone()
            place += 1
    return grown
