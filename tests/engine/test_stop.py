"""Stop strings: however the text is cut, what is shown is the text up to the first stop string."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fulgur.engine.stop import StopStrings

letters = st.text("ab\n", min_size=1, max_size=12)


@settings(derandomize=True, max_examples=500, deadline=None)
@given(st.lists(letters, max_size=8), st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=3))
def test_cut_anywhere(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    watcher = StopStrings(tuple(stops))
    shown, fed, stopped = "", "", False
    for piece in pieces:
        fed += piece
        text, stopped = watcher.feed(piece)
        shown += text
        ends = [fed.find(stop) for stop in stops if stop in fed]
        assert stopped == bool(ends)
        if stopped:
            assert shown == fed[: min(ends)]
            break
        held = fed[len(shown) :]
        assert fed.startswith(shown)
        assert not held or any(stop.startswith(held) for stop in stops), "held back without need"
    if not stopped:
        assert shown + watcher.flush() == whole
        assert watcher.flush() == ""


def test_the_earliest_of_several_wins() -> None:
    assert StopStrings(("cd", "bc")).feed("abcd") == ("a", True)


def test_nothing_that_may_begin_a_stop_string_is_shown() -> None:
    watcher = StopStrings(("\n\nclass",))
    assert watcher.feed("x\n") == ("x", False)
    assert watcher.feed("\ncl") == ("", False)
    assert watcher.feed("ue") == ("\n\nclue", False)
