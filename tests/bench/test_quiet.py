"""Noise is noticed: other programs, the host, and rounds that differ."""

from __future__ import annotations

import pytest

from fulgur.bench import quiet
from fulgur.bench.quiet import Watch, spread, too_far


@pytest.mark.parametrize(
    ("busy", "stolen", "own", "words"),
    [
        (19.0, 0.0, 18.9, []),
        (12.0, 0.0, 8.0, ["other programs took 20%"]),
        (5.0, 1.0, 4.9, ["the host took 5%"]),
        (12.0, 1.0, 2.0, ["other programs took 50%", "the host took 5%"]),
    ],
)
def test_what_others_took(
    busy: float, stolen: float, own: float, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds on two cores."""
    monkeypatch.setattr(quiet, "cores", lambda: 2)
    for name, values in (("monotonic", (3.0, 13.0)), ("_own_seconds", (1.0, 1.0 + own))):
        monkeypatch.setattr(quiet, name, iter(values).__next__)
    monkeypatch.setattr(quiet, "_books", iter([(100.0, 7.0), (100.0 + busy, 7.0 + stolen)]).__next__)
    notes = Watch().notes()
    assert len(notes) == len(words)
    assert all(note.startswith(word) and "not to be quoted" in note for note, word in zip(notes, words, strict=True))


def test_the_books_of_this_machine_can_be_read() -> None:
    books = quiet._books()
    assert books is None or (books[0] > 0 and books[1] >= 0)
    assert quiet._own_seconds() > 0


def test_rounds_that_differ() -> None:
    assert spread([1.0, 1.0, 1.0]) == 0 and not too_far([1.0, 1.02, 0.97])
    assert too_far([1.0, 1.4, 0.8]) and not too_far([1.0])
