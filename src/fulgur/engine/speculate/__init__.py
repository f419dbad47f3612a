"""Lossless speculation: guess several tokens, verify them in one step, keep those that were right."""

from fulgur.engine.speculate.cost import StepCost, measure_cost
from fulgur.engine.speculate.speculator import Speculator

__all__ = ["Speculator", "StepCost", "measure_cost"]
