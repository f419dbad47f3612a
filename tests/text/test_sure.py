"""How much of a completion is shown."""

from __future__ import annotations

import math

import pytest

from fulgur.text.sure import SureText

# Pieces with their own probabilities, the probability of the end, and what is shown at a limit of 0.5.
CASES = {
    "all of it": ([("self", 0.9), (".size", 0.9), (" =", 1.0), (" size", 0.9)], 0.9, "self.size = size"),
    "a sure beginning": ([("path", 0.95), (")", 0.9), (" as", 0.4), (" f", 0.9)], 1.0, "path)"),
    "never half a word": ([("path", 0.95), ("_of", 0.9), ("_files", 0.4), ("(", 1.0)], 1.0, ""),
    "a word that ends there": ([("path", 0.95), ("_of", 0.9), ("(x", 0.4)], 1.0, "path_of"),
    "nothing sure": ([(" a", 0.4), (" +", 0.9)], 1.0, ""),
    "no space at the end": ([("if x", 0.9), (" ", 0.9), ("is", 0.4)], 1.0, "if x"),
    "too short for a look": ([(")", 0.9), (" as", 0.4)], 1.0, ""),
    "short, but the line ends": ([("):", 0.9)], 0.9, "):"),
    "an unsure end": ([("name", 0.6)], 0.5, "name"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_shown(name: str) -> None:
    pieces, end, wanted = CASES[name]
    text, total = SureText(0.5), 0.0
    taken = []
    for piece, probability in pieces:
        total += math.log(probability)
        taken.append(text.add(piece, total))
    assert taken == sorted(taken, reverse=True)  # once it is over it stays over
    assert text.text(total + math.log(end), ended=True) == wanted


def test_what_is_cut_off_ends_with_a_word_that_is_known_to_end() -> None:
    text = SureText(0.5)
    text.add("first", math.log(0.9))
    text.add(" sec", math.log(0.8))
    assert text.text(math.log(0.4), ended=False) == "first"


def test_no_limit_shows_everything() -> None:
    text = SureText(0.0)
    assert text.add("a", -100.0) and text.text(-1000.0, ended=False) == "a"
