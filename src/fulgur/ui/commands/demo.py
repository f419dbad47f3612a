"""`fulgur demo`: a completion and an edit with the embedded model, and the speeds. `make run` without a terminal."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from fulgur.ui.foreign import out

SAMPLE = '''"""Prices of a small shop."""

import json


def load_prices(path):
    """Read the price list."""
    with open(path, encoding="utf-8") as file:
        return json.load(


def total(prices, basket, discount=0):
    result = 0
    for name, count in basket.items():
        result += prices[name] * count
    return result - discount


def cheapest(prices):
    best = None
    for name, price in prices.items():
        if best is None or price < prices[best]:
            best = name
    return best
'''
CURSOR = "json.load(\n"
FINISHED = SAMPLE.replace(CURSOR, "json.load(file)\n")
EDIT = ("shop.py:total", "add a parameter tax=0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--model", metavar="MODEL", help="an embedded model by name, or a model folder")


def run(args: argparse.Namespace) -> int:
    from fulgur.ui.cli import main

    model = ["-m", args.model] if args.model else []
    at = SAMPLE.index(CURSOR) + len(CURSOR) - 1
    line, column = SAMPLE[:at].count("\n") + 1, at - SAMPLE.rfind("\n", 0, at)
    with tempfile.TemporaryDirectory(prefix="fulgur-demo-") as folder:
        file = Path(folder) / "shop.py"
        for text, command in ((SAMPLE, ["complete", f"shop.py:{line}:{column}"]), (FINISHED, ["edit", *EDIT])):
            file.write_text(text, encoding="utf-8")
            quoted = " ".join(f'"{word}"' if " " in word else word for word in command)
            out(f"$ fulgur {quoted}")
            if code := main([*command, *model, "-C", folder]):
                return code
            out()
    out('Now try your own code: `fulgur edit FILE:NAME "what to change" --write`, or `fulgur` in a terminal.')
    return 0
