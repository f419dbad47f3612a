"""Streamed text becomes rows: whatever the pieces, the rows are the same and no character is lost."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from fulgur.ui.foreign import shown
from fulgur.ui.tui.prose import Prose
from fulgur.ui.tui.wrap import break_row, cells, shorten

_SGR = re.compile(r"\x1b\[[0-9;]*m")


def plain(rows: list[str]) -> list[str]:
    return [_SGR.sub("", row) for row in rows]


def stream(text: str, width: int, size: int) -> list[str]:
    prose = Prose(width)
    rows: list[str] = []
    for start in range(0, len(text), size):
        rows += prose.feed(text[start : start + size])
    return rows + prose.finish()


WORDS = st.text(alphabet=st.sampled_from("ab*`#-1. \n日"), max_size=300)


@given(WORDS, st.integers(10, 60), st.integers(1, 40))
def test_rows_do_not_depend_on_how_the_text_was_cut(text: str, width: int, size: int) -> None:
    assert stream(text, width, size) == stream(text, width, 10_000)


@given(WORDS, st.integers(10, 60))
def test_every_character_but_the_spaces_at_folds_is_kept(text: str, width: int) -> None:
    assert "".join("".join(plain(stream(text, width, 3))).split()) == "".join(text.split())


@example("a" + " " * 30, 10)
@given(st.text(alphabet="abc de", max_size=200), st.integers(10, 40))
def test_rows_of_prose_fit_the_width(text: str, width: int) -> None:
    assert all(cells(row) <= width for row in plain(stream(text, width, 7)))


def test_words_fold_at_spaces_and_bullets_hang() -> None:
    assert plain(stream("- one two three four", 12, 5)) == ["- one two", "  three four"]


def test_the_tail_shows_the_row_under_way() -> None:
    prose = Prose(20)
    assert prose.feed("the quick brown fox jumps ov") == ["the quick brown fox"]
    assert plain([prose.tail]) == ["jumps ov"]


def test_code_is_coloured_line_by_line_across_a_docstring() -> None:
    rows = stream('```python\ndef f():\n    """a\n    b"""\n    return 1\n```\nafter', 60, 4)
    assert plain(rows)[1:6] == ["def f():", '    """a', '    b"""', "    return 1", "```"]
    assert "\x1b[35mdef" in rows[1] and "\x1b[32m" in rows[3] and "\x1b[35mreturn" in rows[4]
    assert rows[6] == "after"


def test_a_code_line_without_end_is_cut_and_not_kept_back() -> None:
    prose = Prose(20)
    assert prose.feed("```\n" + "x" * 200)[1:] == ["x" * 20] * 7


def test_escape_codes_of_the_model_do_not_reach_the_terminal() -> None:
    rows = stream("he\x1b]52;c;eA==\x07llo\x1b[2J\n\x9b31m\u202e", 60, 3)
    assert plain(rows) == ["he<U+001B>]52;c;eA==<U+0007>llo<U+001B>[2J", "<U+009B>31m<U+202E>"]


@given(st.text(max_size=80), st.integers(2, 40))
def test_shortened_text_fits(text: str, width: int) -> None:
    assert cells(shorten(shown(text), width)) <= width


@given(st.text(alphabet="ab ", min_size=1, max_size=80), st.integers(3, 20))
def test_a_fold_stays_where_it_is_when_more_text_comes(text: str, width: int) -> None:
    if first := break_row(text, width):
        longer = break_row(text + "x yz", width)
        assert longer is not None and longer[0] == first[0]
