"""Instructions that spell everything out, read without a model."""

from fulgur.edit.plain.read import core, read

__all__ = ["core", "read"]
