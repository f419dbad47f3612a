"""What a generator yields, a change to a file, and the table in which generators register their operations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fulgur.edit.refactor.source import Edit, Source
from fulgur.text.edit_format import Call


@dataclass
class Change:
    """One change found in a file.

    Without edits and without a call, the product's refactoring for this operation makes the change inside the region.
    `inverse`: the edits spoil human code, and the answer is the human text.
    """

    edits: list[Edit] = field(default_factory=list)
    slots: dict[str, str] = field(default_factory=dict)
    inverse: bool = False
    variant: str = ""  # selects a list of phrasings; "" is the operation's own
    cover: tuple[int, int] | None = None  # the region must include this span too
    within: tuple[int, int] | None = None  # the region must stay inside this span
    unique: str | None = None  # an identifier or text that must occur exactly once in the region
    once: str | None = None  # a pattern that must match exactly once in the region, if the instruction names nothing
    needs: str | None = None  # the instruction must mention this slot
    call: Call | None = None  # the answer is this call, the region stays as it is
    spoils: bool = False  # with a call: the edits are made inside the region, before the prompt is written
    noop: bool = True  # the finished region under the same instruction is a "nothing to do"


Generator = Callable[[Source, random.Random], Iterable[Change]]


@dataclass(frozen=True)
class Operation:
    """An operation: where it applies, and what counts as done.

    `sites`: the instruction means every place in the region (changes are combined), else one named place. `absent`: a
    pattern of what the operation removes; if nothing matches, there is nothing to do.
    """

    name: str
    family: str
    generate: Generator
    sites: bool = False
    heldout: bool = False
    absent: str | None = None
    limit: int = 3
    rate: float = 1.0  # how often a file is searched for it; common operations are sampled less often


OPERATIONS: dict[str, Operation] = {}
# Counted over a sample of packages, so that no operation is much more frequent than the median ones.
RATES: dict[str, float] = {
    "rename_symbol": 0.08,
    "make_async": 0.1,
    "wrap_try": 0.1,
    "wrap_body_try": 0.11,
    "rename_local": 0.12,
    "log_entry": 0.12,
    "remove_prints": 0.12,
    "rename_parameter": 0.13,
    "extract_constant": 0.13,
    "add_import": 0.14,
    "raise_on_empty": 0.14,
    "add_parameter": 0.15,
    "extract_variable": 0.15,
    "return_directly": 0.15,
    "add_assert": 0.15,
    "change_value": 0.15,
    "remove_parameter": 0.16,
    "guard_none": 0.16,
    "add_keyword_argument": 0.17,
    "remove_type_hints": 0.17,
    "change_return": 0.17,
    "remove_import": 0.19,
    "add_decorator": 0.19,
    "is_none": 0.2,
    "annotate_parameter": 0.2,
    "annotate_return": 0.2,
    "remove_docstring": 0.2,
    "change_argument": 0.23,
    "optional_union": 0.24,
    "add_type_hints": 0.25,
    "change_default": 0.25,
    "string_quotes": 0.26,
    "change_exception": 0.26,
    "use_literal": 0.27,
    "remove_else_return": 0.28,
    "use_keywords": 0.3,
    "use_fstring": 0.31,
    "swap_branches": 0.32,
    "inline_variable": 0.33,
    "use_isinstance": 0.35,
    "add_parameter_callers": 0.35,
    "add_list_item": 0.36,
    "add_docstring": 0.36,
    "modern_super": 0.38,
    "early_return": 0.42,
    "not_in": 0.46,
    "augmented_assignment": 0.46,
    "merge_nested_if": 0.46,
    "remove_comments": 0.5,
    "use_ternary": 0.52,
    "expand_ternary": 0.56,
    "use_comprehension": 0.57,
    "sort_imports": 0.64,
    "narrow_except": 0.64,
    "add_dict_entry": 0.89,
    "use_items": 0.9,
}


def operation(
    family: str,
    *,
    name: str | None = None,
    sites: bool = False,
    heldout: bool = False,
    absent: str | None = None,
    limit: int = 3,
) -> Callable[[Generator], Generator]:
    """Register a generator under its function's name."""

    def register(generate: Generator) -> Generator:
        key = name or generate.__name__
        OPERATIONS[key] = Operation(key, family, generate, sites, heldout, absent, limit, RATES.get(key, 1.0))
        return generate

    return register


def shuffled(items: Sequence, rng: random.Random) -> list:  # type: ignore[type-arg]
    """A shuffled copy."""
    copy = list(items)
    rng.shuffle(copy)
    return copy
