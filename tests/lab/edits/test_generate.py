"""Real files: no exception on odd input, regions that parse, next edits, and the tokens with their weights."""

from __future__ import annotations

import random
import re
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import SAMPLES

from fulgur.eval.grade import parses
from fulgur.text.edit_format import (
    AFTER,
    CALL,
    END,
    FILE,
    NOEDIT,
    REGION,
    REWRITE,
    SPECIAL_IDS,
    Call,
    NoEdit,
    Rewrite,
    answer_pieces,
    pieces_text,
)
from lab.train.edits import EditExample, check, encode, generate_file
from lab.train.edits.encode import AROUND, CHANGED, COPIED, changed_weights
from lab.train.edits.paraphrase import paraphrase
from lab.train.edits.phrase import instruction, phrasings
from lab.train.edits.regions import MAX_CHARS, MAX_LINES

FILES = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))


class Characters:
    """A tokenizer of one token a character, past the special ids."""

    def encode(self, text: str) -> list[int]:
        return [100 + ord(letter) % 5000 for letter in text]


def standard_library(count: int) -> list[EditExample]:
    found = []
    for path in random.Random(7).sample(FILES, count):
        found += generate_file(path.read_text(encoding="utf-8"), path.name, random.Random(path.name))
    return found


def test_standard_library() -> None:
    examples = standard_library(40)
    assert len(examples) > 500
    for example in examples:
        assert parses(example.region)
        assert example.region.count("\n") <= MAX_LINES + 15 and len(example.region) <= MAX_CHARS * 2
        assert check(example, pieces_text(answer_pieces(example.answer)))
        if isinstance(example.answer, Rewrite):
            assert parses(example.answer.text)
            assert not check(example, example.region)
    refused = sum(isinstance(example.answer, NoEdit) for example in examples) / len(examples)
    assert 0.08 < refused < 0.25
    assert any(isinstance(example.answer, Call) for example in examples)


def test_same_seed_same_examples() -> None:
    text = SAMPLES["shop/inventory.py"]
    assert generate_file(text, "a.py", random.Random(3)) == generate_file(text, "a.py", random.Random(3))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "def f(:\n",
        "x = 1\r\n",
        "\tif x:\n",
        "\0",
        "#" * 500_000,
        "(" * 3000,
        "if 1:\n  pass;x=2",
        "é = '<|end|>'\n",
    ],
)
def test_odd_files_give_nothing_or_something_but_never_raise(text: str) -> None:
    assert isinstance(generate_file(text, "odd.py", random.Random(0)), list)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 4000), st.text(max_size=8))
def test_cut_and_spoiled_files_never_raise(seed: int, cut: int, noise: str) -> None:
    text = SAMPLES["net/service.py"]
    spoiled = text[: min(cut, len(text))] + noise
    for example in generate_file(spoiled, "cut.py", random.Random(seed)):
        assert parses(example.region)


def test_next_edits_show_recent_edits_and_have_no_instruction() -> None:
    found = [example for example in standard_library(25) if example.op == "next_edit"]
    assert len(found) > 20
    for example in found:
        assert example.instruction is None and example.recent
        assert all(edit.before != edit.after for edit in example.recent)
    assert any(isinstance(example.answer, NoEdit) for example in found)
    assert any(isinstance(example.answer, Rewrite) for example in found)


def test_changed_tokens_weigh_more() -> None:
    assert changed_weights([1, 2, 3, 4], [1, 9, 3, 4]) == [COPIED, CHANGED, COPIED, COPIED]
    assert changed_weights([1, 2, 3], [1, 3]) == [COPIED, CHANGED], "the token after a deletion shows it"
    assert changed_weights([1, 2], [1, 2, 7]) == [COPIED, COPIED, CHANGED]


def test_encoding_fits_and_marks_the_answer() -> None:
    for example in standard_library(6):
        tokens, weights = encode(Characters(), example, max_tokens=3000)
        assert len(tokens) == len(weights) <= 3000
        if not tokens:
            continue
        split = tokens.index(SPECIAL_IDS[REWRITE]) + 1
        assert tokens[0] == SPECIAL_IDS[FILE] and tokens[-1] == SPECIAL_IDS[END] and SPECIAL_IDS[REGION] in tokens
        region = slice(tokens.index(SPECIAL_IDS[REGION]), tokens.index(SPECIAL_IDS[AFTER]) + 1)
        assert max(weights[:split]) <= AROUND and not any(weights[region]) and min(weights[split:]) >= COPIED
        if isinstance(example.answer, NoEdit):
            assert tokens[split] == SPECIAL_IDS[NOEDIT]
        if isinstance(example.answer, Call):
            assert tokens[split] == SPECIAL_IDS[CALL]


def test_an_example_that_cannot_fit_is_left_out() -> None:
    example = standard_library(1)[0]
    assert encode(Characters(), example, max_tokens=20) == ([], [])


def test_paraphrases_keep_the_slots_and_never_say_what_is_kept_back() -> None:
    rng = random.Random(4)
    changed = 0
    for found in phrasings().values():
        for phrasing in found:
            other = paraphrase(phrasing.text, rng, verb=False)
            assert sorted(re.findall(r"\{\w+\}", other)) == sorted(re.findall(r"\{\w+\}", phrasing.text))
            changed += other != phrasing.text
    assert changed > 1000
    slots = {"param": "x", "value": "1", "call": "f"}
    kept_back = {p.text.format(**slots) for p in phrasings()["add_keyword_argument"] if p.heldout}
    asked = [instruction("add_keyword_argument", slots, rng, heldout=False, vary=True) for _ in range(800)]
    assert not {made.text.strip(".").lower() for made in asked if made} & {text.lower() for text in kept_back}
