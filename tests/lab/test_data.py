from __future__ import annotations

import ast
import itertools
import random
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_run import standard_library

from fulgur.text.edit_format import (
    END,
    FILE,
    FIM_MIDDLE,
    FIM_PREFIX,
    FIM_SUFFIX,
    REWRITE,
    SPECIAL_IDS,
    SPECIAL_TOKENS,
    completion_pieces,
    encode_pieces,
)
from fulgur.workspace.folders import TOKENIZER
from lab.train import data
from lab.train.documents import write_documents
from lab.train.fim import Kinds, Lines, choose_span, cursor, syntax_spans
from lab.train.rows import WEIGHT_UNIT, load_rows, pack
from lab.train.tokenizer import CodeTokenizer


@pytest.fixture(scope="module")
def tokenizer() -> CodeTokenizer:
    return CodeTokenizer()  # the one that ships


def test_special_tokens_have_the_first_ids(tokenizer: CodeTokenizer) -> None:
    assert [tokenizer.token_id(token) for token in SPECIAL_TOKENS] == list(range(24))
    assert tokenizer.vocab_size == 8192


@settings(max_examples=150, deadline=None)
@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    tokenizer = CodeTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_in_text_stay_text(tokenizer: CodeTokenizer) -> None:
    ids = tokenizer.encode("x = '<|end|>'")
    assert min(ids) >= 24 and tokenizer.decode(ids) == "x = '<|end|>'"


def test_a_line_break_and_its_indentation_are_one_token(tokenizer: CodeTokenizer) -> None:
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("if x:\n        return 12\n\nelse:\n\treturn")]
    assert "\n        " in pieces and "\n\t" in pieces and [p for p in pieces if p.isdigit()] == ["1", "2"]
    for token in range(24, tokenizer.vocab_size):
        text = tokenizer.decode([token])
        assert "\n" not in text[1:] and (not text.startswith("\n") or text.strip() == "")


def test_spans_lie_inside_and_follow_the_syntax() -> None:
    text = standard_library("textwrap").text
    lines = Lines.of(text)
    syntax = syntax_spans(text, lines)
    expressions = {
        ast.get_source_segment(text, node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)
    }
    assert {text[a:b] for a, b in syntax.nodes} & expressions
    for a, b in syntax.blocks:
        indentation = text[text.rfind("\n", 0, a) + 1 : a]
        assert not indentation.strip() and text[b] == "\n" and text[a:b].count("\n") < 8
        assert text[a:b].startswith("elif") or ast.parse(textwrap.dedent(indentation + text[a:b]))
    rng = random.Random(1)
    for _ in range(300):
        begin, end = sorted(rng.sample(range(len(text)), 2))
        a, b = choose_span(text, begin, end, lines, syntax, rng, data.CUTTINGS["fim"].kinds)
        assert begin <= a < b <= end


def test_lines_of_code_are_hidden_more_often_than_prose_and_later_ones_more_often_than_early_ones() -> None:
    text = (
        "def f(value):\n" + '    """\n' + "    a line of prose\n" * 20 + '    """\n' + "    value = other(value)\n" * 20
    )
    lines = Lines.of(text)
    syntax, kinds = syntax_spans(text, lines), Kinds(rest=1.0, several=0, block=0, node=0, piece=0, lines=0)
    assert text.splitlines()[min(syntax.prose)].strip() == '"""' and 1 in syntax.prose and 0 not in syntax.prose
    rng = random.Random(2)
    spans = [choose_span(text, 0, len(text), lines, syntax, rng, kinds) for _ in range(400)]
    prose = sum(text.count("\n", 0, a) in syntax.prose for a, _ in spans)
    assert 0 < prose < 80  # two lines in three, and the earlier ones
    late = sum(a > text.index("value = other") + 200 for a, _ in spans)
    assert late > 400 - prose - late


def test_non_ascii_columns_are_characters() -> None:
    text = "é = 'ü'; call(é)\n"
    assert "call(é)" in {text[a:b] for a, b in syntax_spans(text, Lines.of(text)).nodes}


def test_records_hold_the_whole_file_in_order(tokenizer: CodeTokenizer) -> None:
    document = standard_library("shutil")
    rebuilt = ""
    for ids, weights in data.code_records(document, tokenizer, 2049, random.Random(3)):
        assert len(ids) == len(weights) <= 2049 and ids[0] == SPECIAL_IDS[FILE]
        if SPECIAL_IDS[FIM_MIDDLE] in ids:
            p, s, m = (ids.index(SPECIAL_IDS[token]) for token in (FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE))
            assert ids[-1] == SPECIAL_IDS[END] and weights[-1] == weights[m + 1] == data.MIDDLE_WEIGHT
            rebuilt += (
                tokenizer.decode(ids[p + 1 : m]) + tokenizer.decode(ids[m + 1 : -1]) + tokenizer.decode(ids[s + 1 : p])
            )
        else:
            rebuilt += tokenizer.decode([i for i in ids if i >= 24]).split("\n", 1)[1]
    assert rebuilt == document.text


def test_a_long_context_is_cut_at_its_far_ends() -> None:
    ids, weights = data.fim_record([30], list(range(100, 200)), list(range(300, 400)), [50, 51], 100)
    assert len(ids) == len(weights) == 100
    assert ids[ids.index(SPECIAL_IDS[FIM_MIDDLE]) - 1] == 199 and ids[ids.index(SPECIAL_IDS[FIM_SUFFIX]) + 1] == 300


def test_training_writes_completions_as_they_are_asked_for(tokenizer: CodeTokenizer) -> None:
    path, prefix, suffix, middle = (tokenizer.encode(text) for text in ("a.py\n", "x = f(", ")\n", "1"))
    ids, _ = data.fim_record(path, prefix, suffix, middle, 100)
    asked = completion_pieces("a.py", "x = f(", ")\n", suffix_first=True)
    assert ids == [*encode_pieces(tokenizer, asked), *middle, SPECIAL_IDS[END]]


def test_most_cursors_stand_before_words() -> None:
    text = "value = function(argument, other_argument)"
    rng = random.Random(0)
    places = [cursor(text, 0, len(text), rng) for _ in range(400)]
    starts = {match.start() for match in re.finditer(r"\w+|[^\w\s]", text)}
    assert 0.65 < sum(place in starts for place in places) / 400 < 1 and max(places) < len(text)


def test_edits_of_one_file_do_not_share_a_row(tmp_path: Path) -> None:
    documents = [standard_library(name) for name in ("shutil", "textwrap", "argparse", "csv", "inspect", "zipfile")]
    write_documents(tmp_path / "train-00.jsonl", documents)
    job = data.Job("edits", tmp_path / "train-00.jsonl", tmp_path, "train-edits-0-00", 0, 2049, TOKENIZER)
    name, count = data.make_rows(job)
    rows = load_rows(tmp_path, name)
    assert rows is not None and count == len(rows[0])
    neighbours = same = 0
    for row in rows[0].tolist():
        starts = [at for at, token in enumerate(row) if token == SPECIAL_IDS[FILE]]
        paths = [tuple(row[at + 1 : at + 7]) for at in starts]
        neighbours += len(paths) - 1
        same += sum(one == other for one, other in itertools.pairwise(paths))
    assert neighbours > 10 and same < 0.5 * neighbours


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 40), max_size=80))
def test_packing_loses_nothing_that_fits(sizes: list[int]) -> None:
    records = [([100 + i] * size, [0.5] * size) for i, size in enumerate(sizes)]
    tokens, weights = pack(records, 32)
    fitting = [i for i, size in enumerate(sizes) if size <= 32]
    for i in fitting:
        assert np.count_nonzero(tokens == 100 + i) == sizes[i]
        assert weights[tokens == 100 + i].sum() == 8 * (sizes[i] - 1)  # all but the record's first token
    assert np.count_nonzero(tokens) == sum(sizes[i] for i in fitting)


def test_edit_rows_teach_answers_only(toy: Path) -> None:
    rows = load_rows(toy / "rows", "train-edits-")
    assert rows is not None
    tokens, weights = rows
    taught = np.flatnonzero(weights[0] >= WEIGHT_UNIT)
    first = taught[0]
    assert tokens[0, first - 1] == SPECIAL_IDS[REWRITE] and SPECIAL_IDS[END] in tokens[0, taught]


def test_finished_shards_are_not_made_again(toy: Path) -> None:
    file = next((toy / "rows").glob("train-code-0-*.tokens.npy"))
    before = file.stat().st_mtime_ns
    arguments = ["--corpus", str(toy / "corpus"), "--out", str(toy / "rows"), "--context", "256", "--processes", "1"]
    data.main(["code", *arguments, "--tokenizer", str(toy / "tokenizer.json")])
    assert file.stat().st_mtime_ns == before


def test_a_part_of_the_corpus_is_a_pass(toy: Path, tmp_path: Path) -> None:
    arguments = ["--corpus", str(toy / "corpus"), "--out", str(tmp_path), "--context", "256", "--processes", "1"]
    arguments += ["--tokenizer", str(toy / "tokenizer.json"), "--parts", "2", "--passes", "2"]
    data.main(["code", *arguments])
    assert sorted(file.name for file in tmp_path.glob("train-*.tokens.npy")) == [
        "train-code-0-00.tokens.npy",
        "train-code-1-01.tokens.npy",
    ]
    assert {file.name for file in tmp_path.glob("*.done")} == {"code-0.done", "code-1.done"}
