"""The embedded model as a new user meets it: `fulgur` in a terminal, a server that starts by itself, an edit, undo."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import CTRL_D, ENTER, Terminal

from fulgur.workspace.folders import ASSETS

SHOP = '''"""Prices of a small shop."""


def total(prices, basket):
    result = 0
    for name, count in basket.items():
        result += prices[name] * count
    return result
'''


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """No config and no server; the one that `fulgur` starts ends with the test."""
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    record = folder / "server.json"
    if record.exists():
        os.kill(json.loads(record.read_text())["pid"], signal.SIGTERM)


@pytest.mark.skipif(not list(ASSETS.glob("*/weights.safetensors")), reason="this checkout has no embedded model")
def test_an_edit_is_shown_applied_and_undone(fulgur: object, project: Path) -> None:
    assert callable(fulgur)
    shop = project / "shop.py"
    shop.write_bytes(SHOP.encode())
    terminal: Terminal = fulgur(columns=100, rows=40)
    terminal.wait("›")
    terminal.send("rename result to amount in total in @shop.py", ENTER)
    terminal.wait("Edited shop.py")
    assert "+     amount = 0" in terminal.everything and "-     result = 0" in terminal.everything
    assert shop.read_text() == SHOP.replace("result", "amount")
    terminal.wait("tok/s")
    terminal.send("/review", ENTER)
    terminal.wait("/review needs a model that chats and calls tools; fulgur-60m only edits")
    terminal.send("/plan a cache", ENTER)
    terminal.wait("a plan needs a model that chats and calls tools")
    terminal.send("/model", ENTER)
    terminal.wait("none of these chats")
    terminal.send("/undo", ENTER)
    terminal.wait(lambda: shop.read_bytes() == SHOP.encode())
    terminal.send(CTRL_D)
    assert terminal.exit_code() == 0
