"""Random models to compare logits of: conditioned like trained ones, or with the rounded weights of another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fulgur.model.pack import unpack
from fulgur.model.quantise import dequantise
from fulgur.model.random import MemorySource, RandomSource, random_model
from fulgur.model.tensors import EMBED, expert_plan, matrix_plans
from fulgur.model.weights import Weights

Float = npt.NDArray[np.float32]


class TrainedLike(RandomSource):
    """The residual stream starts at the size of a token's embedding and each layer adds a part of it, as after
    training. In a plain random network the first layer drowns the embedding, and what one layer rounds the next ones
    amplify. For heads of their own: a tied one would only repeat its input."""

    def tensor(self, name: str) -> Float:
        return super().tensor(name) * np.float32(self.factor(name))

    def factor(self, name: str) -> float:
        """What the tensor of a plain random model is multiplied with."""
        if name == EMBED:
            return float(self.config.d_model**0.5)
        added = name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
        return float((2 * self.config.n_layers) ** -0.5) if added else 1.0


class Dequantised(MemorySource):
    """The weights of a quantised model as floats; what is not quantised comes from its source."""

    def __init__(self, weights: Weights, source: TrainedLike) -> None:
        config = weights.config
        tensors = {name: source.tensor(name) for name in random_model(config, 0)}
        plans = [(plan, weights.matrices[name]) for name, plan in matrix_plans(config).items()]
        for name, experts in weights.experts.items():
            layer, short = f"model.{name.partition('experts.')[0]}", name.rpartition(".")[2]
            plans += [(expert_plan(config, layer, e, short), experts.expert(e)) for e in range(config.n_experts)]
        for plan, packed in plans:
            value = dequantise(unpack(packed))
            for i, part in enumerate(plan.parts):
                tensors[part] = tensors[part].copy()
                tensors[part][plan.row[plan.part == i]] = value[plan.part == i]
        super().__init__(config, tensors)


def row_error(logits: Float, expected: Float) -> float:
    """Relative, of the median row: experts that are too close to call may be chosen otherwise in a few."""
    difference = np.linalg.norm(logits - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return float(np.median(difference))
