"""`fulgur bench app`: the web app's first load, and its frame rate while two sessions stream 2,000 tokens a second.

Everything is real: a host and a server with a scripted model in separate processes, and headless Chromium, driven over
its debugging port. Frames are those that the page itself gets (`requestAnimationFrame`); there are at most 60 a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fulgur.bench.report import Report, progress
from fulgur.errors import FulgurError

_RATE = 2000
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_PARAGRAPH = (
    "The **cart** adds its prices one by one; `sum` says the same in one word. A list, then code, as answers have them."
    "\n\n- walks over all prices\n- then rounds\n\n```python\ndef total(prices):\n    return sum(prices)\n```\n\n"
)
# Counts frames, the time between them, and tasks of over 50 ms. The page's policy does not apply to the debugger.
_COUNT = """new Promise(done => {
  const gaps = []; let last = performance.now(); const end = last + %d; let long = 0;
  const watch = new PerformanceObserver(list => { long += list.getEntries().length; });
  watch.observe({ type: 'longtask' });
  const frame = now => {
    gaps.push(now - last); last = now;
    now < end ? requestAnimationFrame(frame) : (watch.disconnect(), done({ gaps, long }));
  };
  requestAnimationFrame(frame);
})"""

_SHOWN = "[...document.querySelectorAll('.answer')].reduce((sum, one) => sum + one.textContent.length, 0)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=6.0, help="how long frames are counted (default 6)")
    parser.add_argument("--browser", type=Path, help="Chromium or Chrome (default: found on the PATH)")


def run(args: argparse.Namespace) -> Report:
    """Measure the first load's size, the frame rate, the slowest frames, and how much text was shown meanwhile."""
    from fulgur.sandbox import start

    browser = args.browser or next((found for name in _BROWSERS if (found := start.program(name))), None)
    if browser is None:
        raise FulgurError("no Chromium was found", hint="Install it, or name it with --browser.")
    return asyncio.run(_measure(str(browser), args.seconds))


async def _measure(browser: str, seconds: float) -> Report:
    from fulgur.client.host import HostClient, app_address
    from fulgur.protocol.host import Attached

    report = Report("app")
    with tempfile.TemporaryDirectory(prefix="fulgur-bench-") as place, progress("bench app", 3) as begin:
        home, work = Path(place, "home"), Path(place, "work")
        home.mkdir()
        work.mkdir()
        _write_home(home, seconds)
        begin("host")
        client = await HostClient(home).open()
        try:
            names = [(await client.call("session.open", Attached, workspace=str(work))).session for _ in range(2)]
            address = await app_address(home, work)
            report.add("app.first_load_kb", await _first_load(address) / 1000, "kB", bar=70, at_most=True)
            begin("page")
            async with _page(browser, Path(place)) as page:
                await page.go(address)
                await page.until("document.querySelector('.board') !== null && !location.hash")
                await page.evaluate(f"location.hash = '#/{'/'.join(names)}'")
                await page.until("document.querySelectorAll('.composer').length === 2")
                for name in names:
                    await client.tell("session.detach", session=name)
                    await client.submit(name, "go")
                await page.until("document.querySelectorAll('.answer').length === 2")
                begin("frames")
                written, before = await page.evaluate(_SHOWN), await page.busy()
                seen = await page.evaluate(_COUNT % (seconds * 1000))
                gaps, busy = seen["gaps"], await page.busy() - before
                written = await page.evaluate(_SHOWN) - written
                streams = await page.evaluate("document.querySelectorAll('.state.works').length")
            if streams != 2:
                raise FulgurError("the answers ended before the frames were counted", hint="Choose fewer --seconds.")
            for name in names:
                await client.tell("turn.stop", session=name)
        finally:
            await client.close()
            await _stop(home)
    report.add("app.frames_per_s", 1000 * len(gaps) / sum(gaps), "frames/s", bar=50)
    report.add("app.frame_p95_ms", statistics.quantiles(gaps, n=20)[-1], "ms")
    report.add("app.frame_max_ms", max(gaps), "ms")
    report.add("app.frame_cpu_ms", 1000 * busy / len(gaps), "ms of the page's thread")
    report.add("app.long_tasks", seen["long"], "tasks over 50 ms")
    report.add("app.shown_chars_s", 1000 * written / sum(gaps), "characters/s, both")
    report.notes.append(
        f"two sessions side by side in {Path(browser).name}, {seconds:g} s, {_RATE} tok/s each asked for"
    )
    return report


def _write_home(home: Path, seconds: float) -> None:
    """Write a config with a scripted model that answers at enough length: about 70 tokens a paragraph, and opening the
    page takes some time."""
    text = _PARAGRAPH * int(_RATE * (seconds + 20) / 70)
    (home / "script.json").write_text(json.dumps({"rate": _RATE, "reply": [{"steps": [{"text": text}]}]}))
    model = f'[models.scripted]\nbackend = "scripted"\npath = "{home / "script.json"}"\n'
    (home / "server.toml").write_text(f"[server]\nport = 0\n\n{model}")
    (home / "config.toml").write_text('model = "scripted"\n')


async def _first_load(address: str) -> int:
    """The bytes sent for the page and the files it names, compressed as a browser requests them."""
    import aiohttp

    base = address.partition("/#")[0]
    headers = {"Accept-Encoding": "gzip"}
    async with aiohttp.ClientSession(auto_decompress=False, headers=headers) as session:

        async def size(path: str) -> int:
            async with session.get(base + path) as answer:
                return len(await answer.read())

        async with session.get(f"{base}/", headers={"Accept-Encoding": "identity"}) as answer:
            page = await answer.text()
        return sum([await size(path) for path in ["/", *re.findall(r'(?:src|href)="(/app/[^"]+)"', page)]])


class _Page:
    """Controls one tab over the debugging protocol."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._count = 0

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        await self._socket.send_json({"id": self._count, "method": method, "params": params})
        while True:
            told: dict[str, Any] = json.loads((await self._socket.receive(timeout=60)).data)
            if told.get("id") == self._count:
                if "error" in told:
                    raise FulgurError(f"the browser: {told['error'].get('message')}")
                return dict(told["result"])

    async def go(self, address: str) -> None:
        await self.ask("Page.navigate", url=address)

    async def evaluate(self, expression: str) -> Any:
        told = await self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in told:
            raise FulgurError(f"the page: {told['exceptionDetails'].get('text')}")
        return told["result"].get("value")

    async def busy(self) -> float:
        """CPU seconds of the page's thread; excludes waiting for a core on a busy machine."""
        await self.ask("Performance.enable", timeDomain="threadTicks")
        told = await self.ask("Performance.getMetrics")
        return float(next(one["value"] for one in told["metrics"] if one["name"] == "TaskDuration"))

    async def until(self, expression: str) -> None:
        for _ in range(600):
            with contextlib.suppress(FulgurError):  # the page is being replaced
                if await self.evaluate(expression):
                    return
            await asyncio.sleep(0.05)
        raise FulgurError(f"the page did not reach this state: {expression}")


@asynccontextmanager
async def _page(browser: str, place: Path) -> AsyncIterator[_Page]:
    import aiohttp

    from fulgur.sandbox import start

    words = ["--headless=new", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0", "--window-size=1440,900"]
    if os.getuid() == 0:
        words.append("--no-sandbox")  # Chromium's own sandbox does not work for root
    profile = place / "profile"
    command = [browser, *words, f"--user-data-dir={profile}", "about:blank"]
    process = start.popen(command, place, stdout=start.DEVNULL, stderr=start.DEVNULL, start_new_session=True)
    try:
        port = await _debugging_port(profile)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                tabs = await answer.json()
            address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as socket:
                yield _Page(socket)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def _debugging_port(profile: Path) -> int:
    for _ in range(600):
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((profile / "DevToolsActivePort").read_text().splitlines()[0])
        await asyncio.sleep(0.05)
    raise FulgurError("the browser did not start", hint="Try it by hand: chromium --headless=new about:blank")


async def _stop(home: Path) -> None:
    """End this bench's host and server, and wait for them, because their folder is deleted next."""
    for name in ("host.json", "server.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            pid = int(json.loads((home / name).read_bytes())["pid"])
            os.kill(pid, signal.SIGTERM)
            for _ in range(200):
                os.kill(pid, 0)
                await asyncio.sleep(0.02)
