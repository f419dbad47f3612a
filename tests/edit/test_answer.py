"""An answer of the embedded model applied to a file: what a rename left alone is said."""

from __future__ import annotations

from pathlib import Path

from fulgur.edit.answer import Outcome, apply_answer
from fulgur.edit.region import Region
from fulgur.text.edit_format import parse_answer

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


def applied(text: str, region: Region, said: str, instruction: str, path: Path) -> Outcome:
    return apply_answer(text, region, parse_answer(said), instruction, path)


def test_a_renamed_method_names_the_uses_it_could_not_judge() -> None:
    region = region_of(SHOP, "    def price", "[name]\n")
    said = region.text.replace("price", "unit_price") + "<|end|>"
    outcome = applied(SHOP, region, said, "rename the method price to unit_price", Path("shop.py"))
    assert outcome.text == RENAMED
    assert "`store.price` on line 10" in outcome.left


def test_a_call_says_the_same() -> None:
    region = region_of(SHOP, "    def price", "[name]\n")
    outcome = applied(
        SHOP, region, "<|call|>rename price unit_price<|end|>", "rename price to unit_price", Path("shop.py")
    )
    assert outcome.text == RENAMED
    assert "`store.price` on line 10" in outcome.left


def test_a_renamed_function_has_nothing_to_add() -> None:
    region = region_of(SHOP, "def total", "names)\n")
    outcome = applied(SHOP, region, "<|call|>rename total summed<|end|>", "rename total to summed", Path("shop.py"))
    assert outcome.text == SHOP.replace("def total", "def summed") and outcome.note == outcome.left == ""


def test_a_standard_name_that_is_not_imported_brings_its_import() -> None:
    text = f'"""A shop."""\n\nimport json\n\n\n{SHOP}'
    region = region_of(text, "def total", "names)\n")
    said = region.text.replace("(store, names)", "(store: Any, names: Iterable[str]) -> int") + "<|end|>"
    outcome = applied(text, region, said, "add type hints", Path("shop.py"))
    assert outcome.text is not None
    assert outcome.text.startswith(
        '"""A shop."""\n\nimport json\nfrom collections.abc import Iterable\nfrom typing import Any\n'
    )
    assert outcome.note == "Added: from typing import Any, from collections.abc import Iterable."


def test_what_is_imported_or_not_standard_brings_nothing() -> None:
    text = f"from typing import Any\n\n\n{SHOP}"
    region = region_of(text, "def total", "names)\n")
    said = region.text.replace("(store, names)", "(store: Any, names: Frob)") + "<|end|>"
    outcome = applied(text, region, said, "give names the type Frob and store Any", Path("shop.py"))
    assert outcome.text is not None and outcome.text.count("import") == 1 and outcome.note == outcome.left == ""


def test_a_call_in_the_region_that_finds_nothing_to_do_is_no_edit() -> None:
    region = region_of(SHOP, "def total", "names)\n")
    outcome = applied(SHOP, region, "<|call|>use_fstring<|end|>", "f-strings please", Path("shop.py"))
    assert outcome.text is None and outcome.note == ("it was read as “use f-strings”, which changes nothing here")
    said = "<|call|>add_docstring Prices of names.<|end|>"
    outcome = applied(SHOP, region, said, "document it", Path("shop.py"))
    assert outcome.text == SHOP.replace(
        "names):\n    return sum", 'names):\n    """Prices of names."""\n    return sum'
    )
