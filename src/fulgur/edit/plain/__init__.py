"""Read instructions that spell everything out, without a model."""

from fulgur.edit.plain.read import core, read

__all__ = ["core", "read"]
