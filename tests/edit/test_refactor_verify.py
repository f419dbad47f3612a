"""Rewrites that can be proved wrong are, and right ones are left alone."""

from __future__ import annotations

import pytest

from fulgur.edit.refactor import apply_call
from fulgur.edit.refactor.source import parse_region
from fulgur.edit.refactor.verify import call_objection, invented, objection, rename_asked
from fulgur.text.edit_format import Call

TOTAL = """def total(prices, discount):
    result = 0
    for price in prices:
        result += price
    return result - discount
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("rename result to amount", ("result", "amount")),
        ("Rename the local variable `result` -> `amount`.", ("result", "amount")),
        ("s/result/amount/", ("result", "amount")),
        ("result should be called amount", ("result", "amount")),
        ("rename all uses of the variable result to amount", ("result", "amount")),
        ("call the variable amount instead of result", None),
        ("add a docstring to result", None),
        ("convert the name to upper case", None),
    ],
)
def test_a_rename_is_read_from_the_instruction(text: str, names: tuple[str, str] | None) -> None:
    assert rename_asked(text) == names


@pytest.mark.parametrize(
    ("instruction", "old", "new"),
    [
        ("rename result to amount", "    return result", "    result -= discount\n    return result"),  # a stray line
        ("rename result to amount", "result = 0", "amount = 0"),  # half of it
        ("add a docstring", "    result = 0", '    """Add up."""\n    result = 1'),  # and something else
        ("remove the comments", "result - discount", "result"),
        ("add type hints", "result - discount", "result"),
        ("use augmented assignment", "price in prices", "price in prizes"),  # a slip in copying
        ("use a constant step", "result - discount", "result"),  # a parameter is forgotten
    ],
)
def test_wrong_rewrites_are_named(instruction: str, old: str, new: str) -> None:
    assert objection(TOTAL, TOTAL.replace(old, new), instruction, TOTAL)


@pytest.mark.parametrize(
    ("instruction", "pairs"),
    [
        ("rename result to amount", [("result", "amount")]),
        ("add a docstring", [("    result = 0", '    """Add up the prices."""\n    result = 0')]),
        ("add type hints", [("prices, discount)", "prices: list[int], discount: int) -> int")]),
        ("log at entry", [("    result = 0", '    logger.debug("total")\n    result = 0')]),
        ("number the prices with enumerate", [("for price in prices", "for index, price in enumerate(prices, index)")]),
        ("make it async", [("def total", "async def total")]),
        ("remove discount", [("result - discount", "result")]),
        ("return None instead", [("result - discount", "None")]),
    ],
)
def test_right_rewrites_are_left_alone(instruction: str, pairs: list[tuple[str, str]]) -> None:
    after = TOTAL
    for old, new in pairs:
        after = after.replace(old, new)
    assert after != TOTAL and objection(TOTAL, after, instruction, TOTAL) is None


def test_calls_name_only_what_is_known() -> None:
    assert call_objection(Call("rename", ("result", "amount")), "rename result to amount", TOTAL) is None
    assert call_objection(Call("rename", ("result", "amuont")), "rename result to amount", TOTAL)
    assert call_objection(Call("rename", ("prices", "amount")), "rename result to amount", TOTAL)
    assert call_objection(Call("rename", ("result",)), "rename result to amount", TOTAL)
    assert call_objection(Call("add_import", ("import", "jsn")), "import json", TOTAL)
    assert call_objection(Call("add_import", ("import", "json")), "import json", TOTAL) is None
    assert call_objection(Call("add_decorator", ("cache",)), "Remove cache from total", TOTAL)
    assert call_objection(Call("extract_variable", ("rest", "result - discount")), "name the value `left`", TOTAL)
    assert call_objection(Call("guard_none", ("prices", "raise", "ValueError")), "prices may be None", TOTAL) is None
    assert call_objection(Call("add_docstring", ("Sum", "up.")), "document it", TOTAL) is None


def test_names_from_nowhere() -> None:
    assert (
        invented(parse_region("x = align_veritably(cell)\n"), "", "x = align_vertically(cell)\n") == "align_veritably"
    )
    assert invented(parse_region("x = [y.strip() for y in cell]\n"), "use a comprehension", "x = cell\n") is None


def test_a_parameter_is_renamed_with_the_calls_that_name_it() -> None:
    text = TOTAL + "\n\ntotal([1], discount=2)\n"
    changed = apply_call(text, Call("rename", ("discount", "rebate")), (0, len(TOTAL)))
    assert changed == text.replace("discount", "rebate")
