"""What each key does. Everything else is prompt_toolkit's Emacs editing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prompt_toolkit.filters import Condition, is_searching, vi_insert_mode
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.search import accept_search

if TYPE_CHECKING:
    from fulgur.ui.tui.app import Tui

# Shift-Enter, in the two ways that terminals send it when configured to.
for _sequence in ("\x1b[13;2u", "\x1b[27;2;13~"):
    ANSI_SEQUENCES[_sequence] = (Keys.Escape, Keys.ControlM)


def key_bindings(tui: Tui) -> KeyBindings:
    """Build the bindings of one screen."""
    keys = KeyBindings()
    menu_open = Condition(lambda: tui.draft.menu is not None)
    asked = Condition(lambda: tui.approvals.wants_key)
    has_hunks = Condition(lambda: tui.approvals.current is not None and bool(tui.approvals.current.hunks))
    choosing = Condition(lambda: tui.approvals.choosing)

    @keys.add("enter", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        if tui.draft.buffer.document.text_before_cursor.endswith("\\"):
            tui.draft.buffer.delete_before_cursor()
            tui.draft.buffer.insert_text("\n")
        elif tui.draft.menu is None or tui.accept_choice(and_run=True):
            tui.enter()

    @keys.add("enter", filter=is_searching)
    def _(event: KeyPressEvent) -> None:
        accept_search()
        tui.draft.buffer.cursor_position = len(tui.draft.text)  # to go on writing, not where the match is

    @keys.add("c-j")
    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        tui.draft.buffer.insert_text("\n")

    @keys.add("tab", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        if tui.draft.menu is not None:
            tui.accept_choice()
        else:
            tui.queue()

    @keys.add("up", filter=menu_open)
    @keys.add("c-p", filter=menu_open)
    def _(event: KeyPressEvent) -> None:
        if tui.draft.menu:
            tui.draft.menu.move(-1)

    @keys.add("down", filter=menu_open)
    @keys.add("c-n", filter=menu_open)
    def _(event: KeyPressEvent) -> None:
        if tui.draft.menu:
            tui.draft.menu.move(1)

    @keys.add("up", filter=Condition(lambda: tui.takes_back) & ~is_searching)
    def _(event: KeyPressEvent) -> None:
        tui.take_back()

    @keys.add("up", filter=~menu_open & ~is_searching & ~Condition(lambda: tui.takes_back))
    def _(event: KeyPressEvent) -> None:
        tui.draft.buffer.auto_up()

    @keys.add("down", filter=~menu_open & ~is_searching)
    def _(event: KeyPressEvent) -> None:
        tui.draft.buffer.auto_down()

    for digit in "123456789":

        @keys.add(digit, filter=Condition(lambda: tui.takes_variant))
        def _(event: KeyPressEvent) -> None:
            tui.take_variant(int(event.data))

    @keys.add("escape", filter=~is_searching & ~(vi_insert_mode & ~menu_open))
    def _(event: KeyPressEvent) -> None:
        if tui.draft.menu is not None:
            tui.draft.menu = None
        elif tui.takes_variant:
            tui.take_variant(0)
        else:
            tui.stop()

    @keys.add("c-c", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        tui.interrupt()

    @keys.add("c-d")
    def _(event: KeyPressEvent) -> None:
        if tui.draft.text:
            tui.draft.buffer.delete()
        else:
            tui.quit(0)

    @keys.add("c-t")
    def _(event: KeyPressEvent) -> None:
        tui.overrule()

    @keys.add("c-g", filter=~is_searching)
    @keys.add("c-x", "c-e", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        tui.draft.buffer.open_in_editor()

    @keys.add("c-l")
    def _(event: KeyPressEvent) -> None:
        tui.screen.redraw_all()

    @keys.add("c-z")
    def _(event: KeyPressEvent) -> None:
        event.app.suspend_to_background()

    @keys.add("y", filter=asked & ~choosing)
    def _(event: KeyPressEvent) -> None:
        tui.decide("once")

    @keys.add("a", filter=asked & ~choosing)
    def _(event: KeyPressEvent) -> None:
        tui.decide("always")

    @keys.add("n", filter=asked & ~choosing)
    def _(event: KeyPressEvent) -> None:
        tui.approvals.refuse()

    @keys.add("h", filter=asked & has_hunks & ~choosing)
    def _(event: KeyPressEvent) -> None:
        tui.approvals.choose()

    for letter, take, rest in (("y", True, False), ("n", False, False), ("a", True, True), ("d", False, True)):

        @keys.add(letter, filter=asked & choosing)
        def _(event: KeyPressEvent, take: bool = take, rest: bool = rest) -> None:
            tui.judge_hunk(take, rest=rest)

    return keys
