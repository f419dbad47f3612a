"""Typing slips."""

from __future__ import annotations


def one_slip(one: str, two: str) -> bool:
    """Whether the words differ by one missing, extra or wrong letter, or by two swapped letters."""
    if one == two or abs(len(one) - len(two)) > 1:
        return False
    start = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    left, right = one[start:], two[start:]
    return (
        left[1:] == right[1:]
        or left[1:] == right
        or left == right[1:]
        or (left[:2] == right[:2][::-1] and left[2:] == right[2:])
    )
