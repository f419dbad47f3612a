"""An answer of the embedded model applied to a file: what a rename left alone is said."""

from __future__ import annotations

from pathlib import Path

from fulgur.tools.answer import apply_answer
from fulgur.tools.region import Region

SHOP = """class Store:
    def price(self, name):
        return self.items[name]

    def twice(self, name):
        return 2 * self.price(name)


def total(store, names):
    return sum(store.price(name) for name in names)
"""
RENAMED = SHOP.replace("def price", "def unit_price").replace("self.price", "self.unit_price")


def region_of(text: str, begin: str, end: str) -> Region:
    start = text.index(begin)
    stop = text.index(end, start) + len(end)
    first = text.count("\n", 0, start) + 1
    return Region(start, stop, text[:start], text[start:stop], text[stop:], first, text.count("\n", 0, stop))


def test_a_renamed_method_names_the_uses_it_could_not_judge() -> None:
    region = region_of(SHOP, "    def price", "[name]\n")
    said = region.text.replace("price", "unit_price") + "<|end|>"
    outcome = apply_answer(SHOP, region, said, "rename the method price to unit_price", Path("shop.py"))
    assert outcome.text == RENAMED
    assert "`store.price` on line 10" in outcome.note


def test_a_call_says_the_same() -> None:
    region = region_of(SHOP, "    def price", "[name]\n")
    outcome = apply_answer(
        SHOP, region, "<|call|>rename price unit_price<|end|>", "rename price to unit_price", Path("shop.py")
    )
    assert outcome.text == RENAMED
    assert "`store.price` on line 10" in outcome.note


def test_a_renamed_function_has_nothing_to_add() -> None:
    region = region_of(SHOP, "def total", "names)\n")
    outcome = apply_answer(
        SHOP, region, "<|call|>rename total summed<|end|>", "rename total to summed", Path("shop.py")
    )
    assert outcome.text == SHOP.replace("def total", "def summed") and outcome.note == ""
