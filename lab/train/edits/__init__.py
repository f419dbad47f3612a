"""Synthetic edits with exact oracles: instructions, regions and the rewrites, calls or refusals that answer them."""

from fulgur.eval.grade import check
from fulgur.eval.tasks import EditExample
from lab.train.edits.build import generate_file
from lab.train.edits.encode import encode
from lab.train.edits.example import OPERATIONS

__all__ = ["OPERATIONS", "EditExample", "check", "encode", "generate_file"]
