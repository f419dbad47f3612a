"""Synthetic edits with exact oracles: instructions, regions and the rewrites, calls or refusals that answer them."""

from fulgur.train.edits.build import generate_file
from fulgur.train.edits.encode import encode
from fulgur.train.edits.example import OPERATIONS, EditExample
from fulgur.train.edits.oracle import check

__all__ = ["OPERATIONS", "EditExample", "check", "encode", "generate_file"]
