"""`fulgur bench tui` measures the real program; here only that it does, not how fast."""

from __future__ import annotations

import argparse
import re

from fulgur.backends.scripted import TOKEN
from fulgur.bench import tui


def test_the_rows_and_the_rate_are_there() -> None:
    report = tui.run(argparse.Namespace(starts=2, keys=4, rate=500))
    values = {row.name: row.value for row in report.rows}
    assert {"tui.start_ms", "tui.lag_p95_ms", "tui.stream_tok_s"} <= set(values)
    assert all(value > 0 for value in values.values())
    assert not [note for note in report.notes if "torch" in note]


def test_what_streams_is_markdown_of_so_many_tokens() -> None:
    text, tokens_a_word = tui.markdown(5000)
    words = re.findall(r"w(\d{4})", text)
    assert words == [f"{number % 10_000:04}" for number in range(len(words))]
    assert 5000 <= len(words) * tokens_a_word < 5000 + 2 * len(TOKEN.findall(tui._PAGE))
    assert all(mark in text for mark in ("## ", "**w", "```python", "|---|", "> w", "   - "))


def test_words_are_counted_once_however_often_they_are_drawn() -> None:
    counter = tui._WordCounter()
    for data in (b"w9998 w9999", b"w9999 w0000 w0001", b"w0001", b"w9998 w0002"):
        counter.feed(data)
    assert counter.words == 4
