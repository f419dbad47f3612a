"""Every operation on hand-written sources: targets parse, the oracle accepts them and rejects what is not done."""

from __future__ import annotations

import io
import keyword
import random
import tokenize
from functools import cache
from pathlib import Path

import pytest
from samples import SAMPLES

from fulgur.edit.refactor import apply_call
from fulgur.eval.grade import parses, reaches, settled
from fulgur.text.edit_format import Call, NoEdit, Rewrite, answer_pieces, pieces_text
from lab.train.edits import OPERATIONS, EditExample, check, generate_file, phrase
from lab.train.edits.phrase import TRAINING, alike, phrasings, read_lists, words
from lab.train.edits.strange import strange_names

TRAINING_LIST = Path(phrase.__file__).parent / "phrasings" / f"{TRAINING}.txt"


@cache
def examples_of(name: str) -> tuple[EditExample, ...]:
    """Examples of one operation from all samples, over enough seeds to meet its variants."""
    split = "heldout_op" if OPERATIONS[name].heldout else "train"
    found: list[EditExample] = []
    for path, text in SAMPLES.items():
        for seed in range(12):
            found += generate_file(text, path, random.Random(f"{name}{seed}"), split=split, only={name})
    return tuple(found)


def written(example: EditExample) -> str:
    return pieces_text(answer_pieces(example.answer))


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_operation(name: str) -> None:
    examples = examples_of(name)
    done = [example for example in examples if not isinstance(example.answer, NoEdit)]
    assert done, "no sample meets this operation"
    for example in examples:
        assert example.instruction and example.region.strip() and example.op == name
        assert check(example, written(example))
        if isinstance(example.answer, NoEdit):
            assert not check(example, example.region + "unrelated = 1\n<|end|>")
            assert not check(example, "<|call|>add_import import zlib<|end|>")
            refused = check(example, "<|call|>rename no_such_name b<|end|>")
            assert refused == (example.file is not None), "on the file, the refactoring refuses it"
            continue
        assert not check(example, example.region), "an unchanged region must not count"
        assert not check(example, "<|noedit|><|end|>")
        if isinstance(example.answer, Rewrite):
            assert parses(example.answer.text) and parses(example.region)
            assert not check(example, spoiled(example.answer.text))
            assert not check(example, example.answer.text + "    stray = 1\n")
            continue
        assert isinstance(example.answer, Call)
        if example.op != "add_docstring":  # the words of a docstring are free
            assert not check(example, f"<|call|>{example.answer.name} something else<|end|>")
        if example.result is not None:
            assert parses(example.result) and check(example, f"{example.result}<|end|>"), "written out it is as good"
            assert not check(example, example.result + "    stray = 1\n")
            applied = settled(example, written(example))
            assert isinstance(applied, Rewrite) and reaches(example, applied.text)


def spoiled(text: str) -> str:
    """The text with the last name in its code wrong (words in strings and comments are free in some operations)."""
    source = f"if 1:\n{text}" if text[0] == " " else text
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.NAME]
    names = [t for t in tokens if not keyword.iskeyword(t.string)]
    if not names:
        return text + "spoiled_ = 1\n"
    last = names[-1]
    lines = source.split("\n")
    line = lines[last.start[0] - 1]
    lines[last.start[0] - 1] = line[: last.start[1]] + "spoiled_" + line[last.end[1] :]
    return "\n".join(lines[1:] if source is not text else lines)


def test_enough_operations_and_phrasings() -> None:
    assert len(OPERATIONS) >= 25
    assert sum(op.heldout for op in OPERATIONS.values()) >= 4
    for name in OPERATIONS:
        lists = [found for key, found in phrasings().items() if key.split(".")[0] == name]
        lines = {phrasing.text: phrasing.heldout for found in lists for phrasing in found}
        assert len(lines) >= 30, name
        assert all(len({phrasing.text for phrasing in found}) == len(found) for found in lists), (
            f"{name} repeats itself"
        )
        assert 0.1 < sum(lines.values()) / len(lines) < 0.25, name


def test_a_held_out_phrasing_is_trained_nowhere() -> None:
    every = [phrasing for found in phrasings().values() for phrasing in found]
    trained = {phrasing.text for phrasing in every if not phrasing.heldout}
    assert not trained & {phrasing.text for phrasing in every if phrasing.heldout}


def test_phrasings_for_training_alone_are_not_like_those_kept_back() -> None:
    every = [phrasing for found in phrasings().values() for phrasing in found]
    back = [set(words(phrasing.text).split()) for phrasing in every if phrasing.heldout]
    extra = [phrasing for phrasing in every if phrasing.extra]
    assert len(extra) > 800 and not any(phrasing.heldout for phrasing in extra)
    assert not any(alike(set(words(phrasing.text).split()), other) for phrasing in extra for other in back)
    assert any(text not in {p.text for p in extra} for text in read_lists(TRAINING_LIST)["add_await"]), (
        "some are left out"
    )
    for key, found in phrasings().items():
        known = {slot for phrasing in found if not phrasing.extra for slot in phrasing.slots}
        if known or key != "near":
            assert all(phrasing.slots <= known for phrasing in found), key


def test_the_evaluation_does_not_use_them() -> None:
    extra = {f"{p.key}:{p.index}" for found in phrasings().values() for p in found if p.extra}
    seen: dict[str, set[str]] = {}
    for split in ("train", "seen", "heldout_phrasing"):
        for path, text in SAMPLES.items():
            for seed in range(3):
                found = generate_file(text, path, random.Random(seed), split=split)
                seen.setdefault(split, set()).update(example.phrasing for example in found)
    assert seen["train"] & extra and not (seen["seen"] | seen["heldout_phrasing"]) & extra


def test_what_is_done_already_is_answered_by_the_call_in_training() -> None:
    calls = [e for e in examples_of("use_in") if isinstance(e.answer, Call) and e.result is None]
    assert calls and all(isinstance(settled(e, written(e)), NoEdit) for e in calls)


def test_training_never_sees_what_is_held_out() -> None:
    for path, text in SAMPLES.items():
        for seed in range(5):
            for example in generate_file(text, path, random.Random(seed)):
                assert not example.heldout_phrasing and not example.heldout_op
                assert example.op not in OPERATIONS or not OPERATIONS[example.op].heldout
            for example in generate_file(text, path, random.Random(seed), split="heldout_phrasing"):
                assert example.heldout_phrasing or example.op == "next_edit"


def test_a_new_parameter_is_never_refused() -> None:
    assert all(isinstance(example.answer, Call) for example in examples_of("add_parameter_callers"))


def test_names_are_changed_by_calls_that_work() -> None:
    for name in ("rename_local", "rename_symbol", "rename_parameter", "remove_parameter", "use_keywords"):
        assert all(not isinstance(example.answer, Rewrite) for example in examples_of(name))
    for example in examples_of("rename_local"):
        if isinstance(example.answer, Call):
            text = SAMPLES[example.path]
            start = text.index(example.region)
            changed = apply_call(text, example.answer, (start, start + len(example.region)))
            assert example.answer.args[1] in changed and changed != text


def test_a_local_rename_written_out_passes_too() -> None:
    example = EditExample(
        "rename_local", "a.py", "", "def f(a):\n    b = a\n    return b\n", "", (), "rename b to c",
        Call("rename", ("b", "c")), "", False, False,
    )  # fmt: skip
    assert check(example, "def f(a):\n    c = a\n    return c\n<|end|>")
    assert not check(example, "def f(a):\n    c = a\n    return b\n<|end|>")
    assert not check(example, "def f(a):\n    c = a\n    c += 1\n    return c\n<|end|>")


def test_strange_names_change_whole_words_and_keep_the_code_whole() -> None:
    changed = 0
    for path, text in SAMPLES.items():
        for seed in range(6):
            other = strange_names(text, random.Random(f"{path}{seed}"))
            changed += other != text
            assert parses(other) and other.count("\n") == text.count("\n")
            assert len(set(other.split()) - set(text.split())) < len(set(text.split()))
    assert changed > len(SAMPLES)
