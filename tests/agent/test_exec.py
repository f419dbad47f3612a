"""`fulgur exec` as scripts use it: output, events, schema, stdin, resume and exit codes."""

import asyncio
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_world import call, say, serving
from waiting import PATIENCE

from fulgur.protocol import agent as events
from fulgur.sandbox.choose import probes, shortcomings
from fulgur.sandbox.policy import Mode, Policy
from fulgur.ui.cli import main

REPLIES = [
    call("shell", {"command": "echo hi > sub/made.txt"}, match="make", times=1),
    say("Made it.", match="make"),
    say('{"answer": 42}', match="schema"),
    {"match": "fail", "steps": [{"text": "I try"}, {"fail": "the engine died"}]},
    {"match": "long", "steps": [{"tokens": 100000}]},
    say("Piped: fine.", match="from stdin"),
    say("Again."),
]


@pytest.fixture
def base_url(home: Path) -> Iterator[str]:
    """A server in a thread of its own, since `exec` runs its own event loop."""
    ready: list[str] = []
    stop = asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with serving(REPLIES, rate=2000) as running:
            ready.append(running.base_url)
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    while not ready:
        time.sleep(0.005)
    mode = "" if any(p.usable for p in probes()) else 'sandbox_mode = "danger-full-access"\n'
    (home / "config.toml").write_text(
        f'model_provider = "t"\n{mode}[model_providers.t]\nbase_url = "{ready[0]}"\n[features]\nguards = false\n'
    )
    yield ready[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.fixture(autouse=True)
def no_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))


def run(workspace: Path, *words: str) -> int:
    return main(["exec", "-C", str(workspace), *words])


def test_answer_on_stdout_the_rest_on_stderr(
    base_url: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(workspace, "make a file") == 0
    out, err = capsys.readouterr()
    assert out == "Made it.\n"
    assert "m works with tools" in err and "$ echo hi > sub/made.txt" in err
    assert (workspace / "sub/made.txt").read_text() == "hi\n"


def test_json_events(base_url: str, workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(workspace, "--json", "make a file") == 0
    out, err = capsys.readouterr()
    seen = [events.decode(line.encode()) for line in out.splitlines()]
    kinds = [json.loads(line)["type"] for line in out.splitlines()]
    # Where the sandbox lacks something, that is said once, between the two.
    mode: Mode = "workspace-write" if any(p.usable for p in probes()) else "danger-full-access"
    limits = shortcomings(Policy.make(mode, workspace, workspace))
    begun = kinds.index("turn.started")
    assert kinds[0] == "session.started" and kinds[-1] == "turn.done"
    assert [e.message for e in seen[1:begun] if isinstance(e, events.Warned)] == ([limits] if limits else [])
    assert set(kinds[1:begun]) <= {"warning"}
    assert isinstance(seen[-1], events.TurnDone) and seen[-1].text == "Made it."
    assert err == ""


def test_schema_and_output_file(base_url: str, workspace: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}')
    out = tmp_path / "out.json"
    assert run(workspace, "--output-schema", str(schema), "-o", str(out), "with a schema") == 0
    assert json.loads(out.read_text()) == {"answer": 42}
    schema.write_text("{")
    assert run(workspace, "--output-schema", str(schema), "x") == 2


def test_with_a_schema_stdout_is_one_document(
    base_url: str, workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}')
    assert run(workspace, "--output-schema", str(schema), "with a schema") == 0
    assert json.loads(capsys.readouterr().out) == {"answer": 42}
    schema.write_text(schema.read_text().replace("integer", "string"))
    assert run(workspace, "--output-schema", str(schema), "with a schema") == 1
    assert "does not follow the schema: data.answer must be string" in capsys.readouterr().err


def test_a_time_limit(base_url: str, workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(workspace, "--timeout", "0.5", "long") == 1
    told = capsys.readouterr()
    assert "stopped after 0.5 s; `fulgur exec --resume " in told.err and told.out.endswith("\n")
    assert run(workspace, "--timeout", "0", "long") == 2


def test_a_prompt_behind_resume_is_no_session(
    base_url: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(workspace, "first") == 0
    capsys.readouterr()
    assert run(workspace, "--resume", "make a file") == 0
    assert capsys.readouterr().out == "Made it.\n"
    assert run(workspace, "--list") == 0
    assert "2 turns" in capsys.readouterr().out


def test_failure_is_exit_code_one(base_url: str, workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(workspace, "fail please") == 1
    out, err = capsys.readouterr()
    assert out == "I try\n" and "fulgur: " in err


def test_stdin(
    base_url: str, workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("this comes from stdin\n"))
    assert run(workspace, "-") == 0
    assert capsys.readouterr().out == "Piped: fine.\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("from stdin"))
    assert run(workspace, "explain") == 0
    assert capsys.readouterr().out == "Piped: fine.\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run(workspace) == 2


def test_bytes_that_are_no_text_may_be_piped(
    base_url: str, workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped = io.TextIOWrapper(io.BytesIO(b"from stdin: caf\xe9"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", piped)
    assert run(workspace, "explain \udcff") == 0
    assert capsys.readouterr().out == "Piped: fine.\n"


def test_a_provider_may_be_named_with_the_model(base_url: str, workspace: Path, home: Path) -> None:
    config = home / "config.toml"
    config.write_text(config.read_text().replace('model_provider = "t"\n', ""))
    assert run(workspace, "-m", "t:m", "one") == 0
    config.write_text(f'model = "t:m"\n{config.read_text()}')
    assert run(workspace, "one") == 0


def test_resume_fork_and_list(base_url: str, workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(workspace, "one") == 0
    assert run(workspace, "--resume", "last", "two") == 0
    capsys.readouterr()
    assert run(workspace, "--list") == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 1 and "2 turns" in listed[0] and listed[0].endswith("one")
    session = listed[0].split()[0]
    assert run(workspace, "--fork", session, "three") == 0
    capsys.readouterr()
    run(workspace, "--list")
    assert sorted(line.split()[3] for line in capsys.readouterr().out.splitlines()) == ["2", "3"]
    assert run(workspace, "--resume", "nope", "x") == 2


def test_wrong_use(base_url: str, workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(workspace, "-m", "nosuch", "hi") == 2
    assert "has no model 'nosuch'\n" in capsys.readouterr().err
    assert run(workspace, "-c", "sandbx_mode=x", "hi") == 2
    assert run(workspace, "-s", "nowhere", "hi") == 2


@contextmanager
def started(workspace: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Interrupts reach it even if whoever started the tests ignores them, as shells in the background do."""
    command = [sys.executable, "-m", "fulgur", "exec", "-C", str(workspace), *words]
    heeded = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, heeded)
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_interrupt_is_130_and_keeps_what_was_said(base_url: str, workspace: Path) -> None:
    with started(workspace, "long story") as process:
        assert process.stdout is not None
        process.stdout.read(50)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert resumed_turns(workspace) == 1


def resumed_turns(workspace: Path) -> int:
    with started(workspace, "--resume", "last", "--json", "hello") as done:
        out, err = done.communicate(timeout=PATIENCE)
    assert done.returncode == 0, err
    return int(json.loads(out.splitlines()[0])["resumed_turns"])


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="the size of a pipe cannot be set here")
def test_interrupt_while_nobody_reads_the_output(base_url: str, workspace: Path) -> None:
    with started(workspace, "long story") as process:
        assert process.stdout is not None
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        held, before = b"", bytes(4)
        while held == bytes(4) or held != before:  # until the next write waits for room
            assert process.poll() is None
            before = held
            time.sleep(0.5)
            held = fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert resumed_turns(workspace) == 1


def test_it_starts_the_local_server_by_itself(home: Path, workspace: Path) -> None:
    script = home / "script.toml"
    script.write_text('[[reply]]\nsteps = [{text = "From my own server."}]\n')
    (home / "server.toml").write_text(f'[models.own]\nbackend = "scripted"\npath = "{script}"\n')
    with started(workspace, "-m", "own", "hi") as process:
        out, err = process.communicate(timeout=PATIENCE)
    record: dict[str, Any] = json.loads((home / "server.json").read_text())
    os.kill(record["pid"], signal.SIGTERM)
    assert (process.returncode, out) == (0, "From my own server.\n"), err
