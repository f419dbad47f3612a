"""Streamed text becomes rows: whatever the pieces, the rows are the same and no character is lost."""

from __future__ import annotations

import re

from hypothesis import assume, example, given
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
def test_every_letter_is_kept(text: str, width: int) -> None:
    """Marks (`*`, `` ` ``, `#`, `-`) may be drawn instead of shown; what they mark never goes. Of the line that opens a
    code block only the language is shown."""
    assume(not re.search(r"(?m)^ {0,3}```+ *[\w+#.-]*[^\w+#.\n-].*[ab1日]", text))
    letters = re.compile("[ab1日]")
    assert letters.findall("".join(plain(stream(text, width, 3)))) == letters.findall(text)


@example("a" + " " * 30, 10)
@given(st.text(alphabet="abc de", max_size=200), st.integers(10, 40))
def test_rows_of_prose_fit_the_width(text: str, width: int) -> None:
    assert all(cells(row) <= width for row in plain(stream(text, width, 7)))


def test_words_fold_at_spaces_and_bullets_hang() -> None:
    assert plain(stream("- one two three four", 12, 5)) == ["• one two", "  three four"]


def test_the_tail_shows_the_row_under_way() -> None:
    prose = Prose(20)
    assert prose.feed("the quick brown fox jumps ov") == ["the quick brown fox"]
    assert plain([prose.tail]) == ["jumps ov"]


def test_code_is_coloured_line_by_line_across_a_docstring() -> None:
    rows = stream('```python\ndef f():\n    """a\n    b"""\n    return 1\n```\nafter', 60, 4)
    assert plain(rows) == ["python", "def f():", '    """a', '    b"""', "    return 1", "after"]
    assert "\x1b[35mdef" in rows[1] and "\x1b[33m" in rows[3] and "\x1b[35mreturn" in rows[4]


def test_a_code_line_without_end_is_cut_and_not_kept_back() -> None:
    prose = Prose(20)
    assert prose.feed("```\n" + "x" * 200) == ["x" * 20] * 7


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


def drawn(text: str, width: int = 60) -> list[str]:
    return plain(stream(text, width, 10_000))


def test_marks_are_drawn_and_not_shown() -> None:
    rows = stream("# Title\nUse **bold**, *soft* and `x = 1`, see [docs](https://a.example/b).\n", 80, 5)
    assert plain(rows) == ["Title", "Use bold, soft and x = 1, see docs (https://a.example/b)."]
    assert "\x1b[1mbold\x1b[0m" in rows[1] and "\x1b[3msoft\x1b[0m" in rows[1] and "\x1b[36mx = 1\x1b[0m" in rows[1]
    assert "\x1b[4mdocs\x1b[0m" in rows[1], "and the address stands beside the words"


def test_what_is_no_mark_stays() -> None:
    for line in (
        "2 * 3 * 4",
        "snake_case_name",
        "a**b",
        "def f(*args, **kwargs)",
        "`open",
        "x[0](y",
        "__init__.py",
        "5*",
    ):
        assert drawn(line) == [line]
    assert drawn(r"\*literal\* and \_this\_") == ["*literal* and _this_"]


def test_lists_quotes_and_rules() -> None:
    assert drawn("* a\n  + b\n1. c\n- [x] done\n- [ ] open\n> said\n---\n") == [
        *("• a", "  • b", "1. c", "☑ done", "☐ open", "│ said", "─" * 40)
    ]


def test_a_strong_run_goes_on_in_the_next_row() -> None:
    rows = stream("**one two three four** five", 12, 4)
    assert plain(rows) == ["one two", "three four", "five"]
    assert rows[0] == "\x1b[1mone two\x1b[0m" and rows[1] == "\x1b[1mthree four\x1b[0m" and rows[2] == "five"


def test_tables_are_aligned_and_wide_cells_folded() -> None:
    text = "| name | n |\n|---|--:|\n| `alpha` | 1 |\n| b | **20** |\n\nafter"
    assert drawn(text) == ["name  │  n", "──────┼───", "alpha │  1", "b     │ 20", "", "after"]
    narrow = drawn("| a | b |\n|---|---|\n| one two three four five | x |\n", 20)
    assert [row.rstrip() for row in narrow] == [
        *("a                │ b", "─────────────────┼──", "one two three    │ x", "four five        │")
    ]


def test_a_line_without_end_costs_what_its_rows_cost() -> None:
    rows = stream("**word** " * 20_000, 40, 100_000)
    assert len(rows) == 2500 and all(cells(row) <= 40 for row in plain(rows))


def test_lines_with_bars_that_are_no_table_are_shown_as_written() -> None:
    assert drawn("| not a table\nbut prose") == ["| not a table", "but prose"]


def test_a_growing_table_is_seen() -> None:
    prose = Prose(40)
    assert prose.feed("| a | b |\n|---|---|\n| 1 |") == []
    assert plain([prose.tail])[0].split("\n") == ["| a | b |", "|---|---|", "| 1 |"]


MARKDOWN = st.lists(
    st.sampled_from(
        [
            "**a b**",
            "*c d*",
            "`e f`",
            "[g](h)",
            "| i | j |\n|---|---|\n| k | l |\n",
            "\n",
            "\n- ",
            " word",
            "\n> ",
            "```\n",
        ]
    ),
    max_size=40,
).map("".join)


@given(MARKDOWN, st.integers(10, 40), st.integers(1, 9))
def test_rows_of_markdown_do_not_depend_on_the_pieces(text: str, width: int, size: int) -> None:
    assert stream(text, width, size) == stream(text, width, 10_000)
