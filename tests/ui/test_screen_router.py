"""`model = "auto"` in a real terminal: what is decided, overruled by one key, and handed over when it drifts."""

from __future__ import annotations

from collections.abc import Callable

from terminal import ENTER, Terminal

CTRL_T = "\x14"
AUTO = ("-c", "model=auto", "-c", "router.fast=scripted", "-c", "router.deep=scripted-2")


def test_a_decision_is_overruled_by_one_key(fulgur: Callable[..., Terminal]) -> None:
    screen = fulgur(*AUTO, columns=120)
    screen.wait("›")
    screen.send("rename it: a long story", ENTER)
    screen.wait("→ fast: scripted, a small edit in one place (“rename”) · Ctrl-T gives it to scripted-2 (deep)")
    screen.wait("w0020")
    screen.send(CTRL_T)
    screen.wait("→ deep: scripted-2, you chose it")
    screen.wait("You said: You take over from another model, scripted")
    screen.wait("· fast scripted: ")
    screen.wait(" · deep scripted-2: ")
    screen.wait(lambda: "  scripted-2 · " in screen.text)  # the status line names who answered
    assert "w0020" in screen.everything
    screen.send(CTRL_T)
    screen.wait("the next turn is for the deep model, scripted-2")
    screen.send("rename again", ENTER)
    screen.wait("You said: rename again")
    assert screen.everything.count("→ deep: scripted-2, you chose it") == 2


def test_drift_escalates(fulgur: Callable[..., Terminal]) -> None:
    screen = fulgur(*AUTO, columns=120)
    screen.wait("›")
    screen.send("rename the drifting one", ENTER)
    screen.wait("→ deep: scripted-2, it called read 3 times with the same result")
    screen.wait("You said: You take over from another model")
    screen.wait(" · deep scripted-2: ")
    assert screen.everything.count("✓ read app.py") == 3
