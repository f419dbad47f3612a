"""Commands on a real terminal: what a model answers and what a folder holds cannot speak to the terminal."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import call, serving
from terminal import Terminal

from fulgur.sandbox.choose import probes

COPY = "\x1b]52;c;ZXZpbA==\x07"  # puts a text of the attacker's choice into the clipboard
EVIL = f"{COPY}\x1b]0;title\x07\x9b2J\u202e\u3164"


@pytest.fixture
def base_url(home: Path) -> Iterator[str]:
    """A server in a thread of its own."""
    ready: list[str] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    patch = f"*** Begin Patch\n*** Add File: sub/{COPY}.txt\n+{EVIL}\n*** End Patch"
    replies = [
        call("shell", {"command": f"echo '{EVIL}'; exit 3", "reason": EVIL}, times=1),
        call("apply_patch", {"patch": patch}, times=1),
        call(f"tool{COPY}", {"x": EVIL}, times=1),
        call("read", {"path": EVIL}, times=1),
        {"steps": [{"reasoning": EVIL}, {"text": f"Done {EVIL}"}, {"fail": f"over {EVIL}"}]},
    ]

    async def serve() -> None:
        async with serving(replies) as running:
            ready.append(running.base_url)
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    while not ready:
        thread.join(0.005)
    yield ready[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def raw_output(home: Path, folder: Path, *words: str) -> tuple[int, str]:
    """All a command writes to its terminal."""
    terminal = Terminal(
        [sys.executable, "-m", "fulgur", *words],
        env={"FULGUR_HOME": str(home), "PYTHONIOENCODING": "utf-8", "PYTHONSAFEPATH": "1"},
        cwd=folder,
        columns=100,
    )
    try:
        return terminal.exit_code(60), terminal.raw.decode(errors="surrogateescape")
    finally:
        terminal.close()


def assert_quiet(raw: str) -> None:
    for sign in ("\x1b]", "\x9b", "\x07", "\u202e", "\u3164"):
        assert sign not in raw, f"{sign!r} reached the terminal: {raw!r}"
    assert "<U+001B>]52;c;ZXZpbA==<U+0007>" in raw  # it was there, and is seen


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_exec(base_url: str, home: Path, workspace: Path, words: list[str]) -> None:
    (workspace / "sub").mkdir()
    mode = "" if any(p.usable for p in probes()) else 'sandbox_mode = "danger-full-access"\n'
    (home / "config.toml").write_text(
        f'model_provider = "t"\n{mode}[model_providers.t]\nbase_url = "{base_url}"\n[features]\nguards = false\n'
    )
    code, raw = raw_output(home, workspace, "exec", *words, "go")
    assert code == 1
    if words:
        for sign in ("\x1b]", "\x9b", "\x07", "\u202e", "\u3164"):
            assert sign not in raw
        assert any(COPY in json.loads(line).get("text", "") for line in raw.splitlines() if line.startswith("{"))
    else:
        assert_quiet(raw)
        assert "Done <U+001B>]52" in raw and "• $ echo '<U+001B>]52" in raw
    listed = raw_output(home, workspace, "exec", "--list")[1]
    assert "\x1b]" not in listed and "1 turn" in listed


def test_ask(home: Path, workspace: Path) -> None:
    (workspace / f"a{COPY}.py").write_text(f'def find_me():\n    """{EVIL}"""\n')
    (workspace / "b.py").write_text("def find_me_too():\n    pass\n")
    code, raw = raw_output(home, workspace, "ask", "find_me")
    assert code == 0
    assert_quiet(raw)


def test_errors(home: Path, workspace: Path) -> None:
    code, raw = raw_output(home, workspace, "ask", f"nothing {EVIL}")
    assert code == 1 and not any(sign in raw for sign in ("\x1b]", "\x9b", "\u202e"))
    (workspace / ".fulgur").mkdir()
    (home / "config.toml").write_text('model = "\\u001b]52;c;ZXZpbA==\\u0007"\n')
    code, raw = raw_output(home, workspace, "config", "show")
    assert "\x1b]" not in raw and "\x07" not in raw


def test_a_pipe_gets_the_text_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    from fulgur.ui.foreign import note, out, out_diff

    out(EVIL)
    out_diff(f"+{EVIL}\n")
    note(EVIL)
    seen = capfd.readouterr()
    assert seen.out == f"{EVIL}\n+{EVIL}\n" and "\x1b" not in seen.err


def test_names_that_are_not_utf8_can_be_said(capfd: pytest.CaptureFixture[str]) -> None:
    from fulgur.ui.foreign import note, out

    name = os.fsdecode(b"caf\xe9")
    out(name)
    note(name)
    seen = capfd.readouterr()
    assert "caf" in seen.out and "caf<U+DCE9>" in seen.err
