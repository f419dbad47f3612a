"""`fulgur bench tui`: from start to the first prompt, and from a key to the screen while 2,000 tokens a second of
Markdown stream.

The real program runs in a real pseudo terminal against a real server whose scripted model keeps the pace. A key counts
as shown when the terminal has received it. Every key is another rare letter, so none is mistaken for streamed text.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import tempfile
import time
from pathlib import Path

from fulgur.backends.scripted import TOKEN
from fulgur.bench.pty import PtyProgram
from fulgur.bench.report import Report, progress
from fulgur.bench.scripted_server import ScriptedServer
from fulgur.errors import FulgurError, UsageError
from fulgur.sandbox import start

_PROMPT = "› ".encode()
_LETTERS = [chr(code) for code in range(0x100, 0x180) if chr(code).isalpha()]
_WORD = re.compile(rb"w(\d{4})")
_WARM_UP = 3
# Everything that is drawn differently from how it is written; the words are numbered on from page to page.
_PAGE = '''## About {} and {}

{} {} **{} {}** {} `{}` {} {} {} {} *{}* {} {} {} {} [{} {}](https://example.com/a) {} {} {} {} {} {} {}.

1. {} {} `{}` {} {} {} {} {} {} {} {} {} {} {} {} {}
2. {} {} {}
   - {} **{}** {}
   - {} {} {}

```python
def {}({}, {}):
    """{} {}."""
    return {} + {}  # {} {}
```

| {} | {} |
|---|---|
| {} | `{}` |
| {} | {} |

> {} {} {} {}

'''


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How much to measure."""
    parser.add_argument("--starts", type=int, default=15, help="how often the program is started (default 15)")
    parser.add_argument("--keys", type=int, default=200, help="how many keys are pressed (default 200)")
    parser.add_argument("--rate", type=int, default=2000, help="tokens a second that stream meanwhile (default 2000)")


def run(args: argparse.Namespace) -> Report:
    """Measure both; report medians and the 95th percentile."""
    if args.starts < 1 or args.keys < 2 or args.rate < 1:
        raise UsageError("at least one start, two keys and a rate above 0 are needed")
    report = Report("terminal UI")
    with tempfile.TemporaryDirectory(prefix="fulgur-bench-") as folder, progress("bench tui", 3) as begin:
        home, work = Path(folder) / "home", Path(folder) / "work"
        home.mkdir()
        work.mkdir()
        begin("server")
        # Enough text for as long as the keys take, and some more.
        text, tokens_a_word = markdown(int(args.rate * (args.keys * 0.15 + 30)))
        script = f"rate = {args.rate}\n[[reply]]\nsteps = [{{text = {json.dumps(text)}}}]\n"
        with ScriptedServer(home, script) as server:
            env = {**os.environ, **server.environment, "TERM": "xterm-256color"}
            begin("starts")
            starts, busy = zip(
                *[_start_ms(env, work, report) for _ in range(_WARM_UP + args.starts)][_WARM_UP:], strict=True
            )
            begin("keys")
            lags, words = _lags_ms(env, work, args.keys)
    report.add("tui.start_ms", statistics.median(starts), "ms", bar=250, at_most=True)
    report.add("tui.start_max_ms", max(starts), "ms")
    report.add("tui.start_cpu_ms", statistics.median(busy), "ms")
    report.add("tui.lag_p50_ms", statistics.median(lags), "ms")
    report.add("tui.lag_p95_ms", statistics.quantiles(lags, n=20)[-1], "ms", bar=10, at_most=True)
    report.add("tui.lag_max_ms", max(lags), "ms")
    report.add("tui.stream_tok_s", words * tokens_a_word, "tok/s", bar=0.95 * args.rate)
    report.notes.append(f"{len(starts)} starts (median), {len(lags)} keys, at random moments while Markdown streams")
    return report


def markdown(tokens: int) -> tuple[str, float]:
    """At least this many tokens of Markdown, and the number of tokens per word."""
    words = _PAGE.count("{}")
    a_page = len(TOKEN.findall(_PAGE.replace("{}", "w0000")))
    pages = -(-tokens // a_page)
    text = "".join(
        _PAGE.format(*(f"w{number % 10_000:04}" for number in range(page * words, (page + 1) * words)))
        for page in range(pages)
    )
    return text, a_page / words


def _program(env: dict[str, str], work: Path) -> PtyProgram:
    return PtyProgram(start.python("fulgur"), env=env, cwd=work)


def _start_ms(env: dict[str, str], work: Path, report: Report) -> tuple[float, float]:
    """Time from spawn to prompt, and its CPU time, which other work on the machine does not lengthen as much.

    By then the prompt takes keys; one is pressed and awaited to be sure.
    """
    program = _program(env, work)
    try:
        _wait_for(program, _PROMPT)
        seconds = time.perf_counter() - program.started
        busy = _cpu_seconds(program.pid)
        program.write(_LETTERS[0])
        _wait_for(program, _LETTERS[0].encode())
        loaded = Path(f"/proc/{program.pid}/maps")
        if loaded.exists() and "libtorch" in loaded.read_text():
            report.notes.append("torch was loaded at start")
        return seconds * 1000, busy * 1000
    finally:
        program.close()


def _cpu_seconds(pid: int) -> float:
    """CPU time from the scheduler's own count; 0 if there is none."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _lags_ms(env: dict[str, str], work: Path, keys: int) -> tuple[list[float], float]:
    """Key-to-screen times while the answer streams, and its actual words a second."""
    program = _program(env, work)
    pause = random.Random(7)
    try:
        _wait_for(program, _PROMPT)
        program.write("speak\r")
        _wait_for(program, b"w0100", 60)
        counter = _WordCounter()
        lags = []
        begun = time.perf_counter()
        for number in range(keys):
            _drain(program, pause.uniform(0.03, 0.13), counter)
            letter = _LETTERS[number % len(_LETTERS)]
            if number and number % len(_LETTERS) == 0:
                program.write("\x15")  # Ctrl-U: the letters are used again
                _drain(program, 0.1, counter)
            pressed = time.perf_counter()
            program.write(letter)
            counter.feed(_wait_for(program, letter.encode()))
            lags.append((time.perf_counter() - pressed) * 1000)
        rate = counter.words / (time.perf_counter() - begun)
    finally:
        program.close()
    return lags, rate


class _WordCounter:
    """The streamed words are numbered, so the newest one tells how many came, however often rows are redrawn."""

    def __init__(self) -> None:
        self.words = 0
        self._newest: int | None = None

    def feed(self, data: bytes) -> None:
        for match in _WORD.finditer(data):
            number = int(match.group(1))
            if self._newest is None:
                self._newest = number
            step = (number - self._newest) % 10_000
            if step < 5_000:  # otherwise an older word, redrawn
                self.words += step
                self._newest = number


def _drain(program: PtyProgram, seconds: float, counter: _WordCounter) -> None:
    end = time.perf_counter() + seconds
    while (left := end - time.perf_counter()) > 0:
        counter.feed(program.read(left))


def _wait_for(program: PtyProgram, wanted: bytes, seconds: float = 20.0) -> bytes:
    """Read until the bytes come; return everything read."""
    data = b""
    end = time.perf_counter() + seconds
    while wanted not in data:
        data += program.read(end - time.perf_counter())
        if time.perf_counter() > end or program.poll() is not None:
            shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", data.decode(errors="replace"))[-400:]
            raise FulgurError(f"the terminal UI did not show {wanted.decode()!r}", hint=f"it showed: {shown.strip()!r}")
    return data
