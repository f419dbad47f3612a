"""Eight hostile clients against a real server: what another client waits meanwhile, and what the server takes.

    python -m tests.attacks.storm [--seconds 5] [--seed 0] [--json F] [--turns] [KIND …]

Each kind of attack runs for some seconds from a process of its own. Beside it an honest client asks `/healthz` and
creates short answers over a WebSocket; the table says how long it waited, how large the server's process became, and
the longest turn of its event loop (`tests/attacks/watched.py`), which tells the server's part from the machine's.
The suite asserts what is right or wrong; this prints what depends on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import itertools
import json
import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

CLIENTS = 8
ROOT = Path(__file__).parents[2]


class Attacker:
    """One hostile client: its own connections, its own random numbers."""

    def __init__(self, session: aiohttp.ClientSession, url: str, seed: int) -> None:
        self.session = session
        self.url = url
        self.choose = random.Random(seed)
        self.count = itertools.count(seed * 1_000_000)

    async def post(self, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(f"{self.url}/responses", data=data, headers=headers) as answer:
            await answer.read()

    async def constrained(self, schema: dict[str, Any] | None = None, **grammar: str) -> None:
        body: dict[str, Any] = {"model": "local", "input": "x", "max_output_tokens": 8, "store": False}
        if schema is not None:
            body["text"] = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
        else:
            body["tools"] = [{"type": "custom", "name": "t", "format": {"type": "grammar", **grammar}}]
        await self.post(body)

    async def schemas(self) -> None:
        count = self.choose.randrange(10, 40)
        title = str(next(self.count))
        parts = [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(1, count)]
        await self.constrained({"title": title, "allOf": parts})

    async def grammars(self) -> None:
        rules = self.choose.choice([300, 3000, 20_000])
        lines = [f"r{n}: r{n + 1}" for n in range(rules)]
        source = "\n".join(["start: r0", *lines, f'r{rules}: "{next(self.count)}"', ""])
        await self.constrained(syntax="lark", definition=source)

    async def regexes(self) -> None:
        n = self.choose.randrange(50, 2000)
        pattern = self.choose.choice([f"((.?){{{n}}}){{{n}}}", f"(a|b)*a(a|b){{{n}}}x", "(" * n + "a" + ")" * n])
        await self.constrained(syntax="regex", definition=f"{pattern}{next(self.count)}")

    async def bombs(self) -> None:
        packed = gzip.compress(b'{"model": "scripted", "input": "' + b"a" * (200 << 20), 1) if not BOMB else BOMB[0]
        BOMB[:] = [packed]
        await self.post(packed, **{"Content-Encoding": "gzip"})

    async def large(self) -> None:
        """10 MB of text for the local model, and ten thousand items."""
        if self.choose.random() < 0.5:
            await self.post({"model": "local", "input": f"def f(x): return x + {next(self.count)}\n" * 300_000})
        else:
            item = {"role": "user", "content": [{"type": "input_text", "text": "x"}] * 20}
            await self.post({"model": "scripted", "input": [item] * 2000, "store": False})

    async def values(self) -> None:
        await self.post(b'{"model": "scripted", "input": [' + b"{}," * 3_000_000 + b"{}]}")

    async def half(self) -> None:
        """Two hundred connections a client that send half a head."""
        host, port = self.url.removeprefix("http://").split("/")[0].split(":")
        writers = []
        for _ in range(200):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
                writers.append(writer)
        await asyncio.sleep(1)
        for writer in writers:
            writer.transport.abort()

    async def unread(self) -> None:
        """Streams that nobody reads, and frames whose errors nobody reads."""
        async with self.session.ws_connect(f"{self.url}/responses") as socket:
            transport = socket._response.connection.transport  # type: ignore[union-attr]
            transport.pause_reading()
            for lane in range(16):
                await self._create(socket, f"lane{lane}", "count")
            with contextlib.suppress(TimeoutError):
                for _ in range(200_000):
                    await asyncio.wait_for(socket.send_str('{"type":"nonsense"}'), 1)
            transport.abort()

    async def steers(self) -> None:
        async with self.session.ws_connect(f"{self.url}/responses", max_msg_size=0) as socket:
            await self._create(socket, None, "count")
            created = json.loads((await socket.receive()).data)
            socket._response.connection.transport.pause_reading()  # type: ignore[union-attr]
            steer = {
                "type": "response.steer",
                "previous_response_id": created["response"]["id"],
                "input": "y" * (10 << 20),
            }
            with contextlib.suppress(TimeoutError):
                for _ in range(5):
                    await asyncio.wait_for(socket.send_json(steer), 5)
            socket._response.connection.transport.abort()  # type: ignore[union-attr]

    async def queued(self) -> None:
        async with self.session.ws_connect(f"{self.url}/responses", max_msg_size=0) as socket:
            await self._create(socket, None, "count")  # the others of the lane wait behind it
            with contextlib.suppress(TimeoutError):
                for _ in range(8):
                    await asyncio.wait_for(self._create(socket, None, "z" * (10 << 20)), 5)
            socket._response.connection.transport.abort()  # type: ignore[union-attr]

    async def frames(self) -> None:
        async with self.session.ws_connect(f"{self.url}/responses") as socket:
            transport = socket._response.connection.transport  # type: ignore[union-attr]
            for _ in range(200):
                if transport.is_closing():
                    return
                transport.write(self.choose.randbytes(self.choose.randrange(1, 2000)))
                await asyncio.sleep(0)

    async def _create(self, socket: aiohttp.ClientWebSocketResponse, lane: str | None, text: str) -> None:
        frame = {"type": "response.create", "model": "scripted", "input": text, "store": False}
        await socket.send_json(frame if lane is None else {**frame, "stream_id": lane})


BOMB: list[bytes] = []
KINDS = [name for name in vars(Attacker) if not name.startswith("_") and name not in ("post", "constrained")]


async def attack(kind: str, url: str, seconds: float, seed: int) -> None:
    ends = time.monotonic() + seconds
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:

        async def client(number: int) -> None:
            attacker = Attacker(session, url, seed * CLIENTS + number)
            work: Callable[[], Awaitable[None]] = getattr(attacker, kind)
            while time.monotonic() < ends:
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, TypeError, ValueError):
                    await asyncio.wait_for(work(), max(1.0, ends - time.monotonic() + 5))

        await asyncio.gather(*(client(number) for number in range(CLIENTS)))


class Server:
    """`fulgur serve` in a process of its own, with a local model of random weights and a scripted one."""

    def __init__(self, folder: Path) -> None:
        from fulgur.bench.chat_model import write_chat_model

        write_chat_model(folder / "random", d_model=64, n_layers=1)
        (folder / "script.toml").write_text(
            'rate = 2000\n[[reply]]\nmatch = "^count"\nsteps = [{tokens = 6000}]\n'
            '[[reply]]\nsteps = [{text = "done"}]\n'
        )
        (folder / "server.toml").write_text(
            f'[models.local]\nbackend = "local"\npath = "{folder}/random"\ncontext = 4096\n'
            f'[models.scripted]\nbackend = "scripted"\npath = "{folder}/script.toml"\ncontext = 200000\n'
        )
        self.log = folder / "server.log"
        self._turns = folder / "turns.json"
        command = ["-m", "tests.attacks.watched", str(self._turns), "serve", "--file", str(folder / "server.toml")]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command, "--port", "0"],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "FULGUR_HOME": str(folder)},
            )
        while "listens on" not in self.log.read_text() and self.process.poll() is None:
            time.sleep(0.05)
        self.url = self.log.read_text().split("listens on ")[1].split()[0]

    def memory(self, field: str = "VmRSS") -> float:
        """Megabytes of the server's own process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{field}:")[1].split()[0]) / 1024

    def turns(self) -> list[dict[str, Any]]:
        """The longest turns of its event loop since this was last asked."""
        self._turns.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        while not self._turns.exists() and self.process.poll() is None:
            time.sleep(0.01)
        turns: list[dict[str, Any]] = json.loads(self._turns.read_text()) if self._turns.exists() else []
        return turns

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


async def honest(url: str, until: Callable[[], bool]) -> dict[str, list[float]]:
    """Milliseconds of each question, asked every 20 ms on connections that were open before."""
    waits: dict[str, list[float]] = {"healthz": [], "create": []}
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}/responses") as socket:
        while not until():
            began = time.perf_counter()
            async with session.get(url.removesuffix("/v1") + "/healthz") as answer:
                assert answer.status == 200
            waits["healthz"].append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            await socket.send_json({"type": "response.create", "model": "scripted", "input": "hello", "store": False})
            while b"response.completed" not in (await socket.receive()).data.encode():
                pass
            waits["create"].append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0.02)
    return waits


def row(name: str, waits: dict[str, list[float]], server: Server) -> dict[str, Any]:
    result: dict[str, Any] = {"attack": name}
    for kind, values in waits.items():
        ordered = sorted(values)
        result[f"{kind}_p50_ms"] = round(statistics.median(ordered), 1)
        result[f"{kind}_p99_ms"] = round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 1)
        result[f"{kind}_max_ms"] = round(ordered[-1], 1)
    result["rss_mb"] = round(server.memory())
    result["peak_mb"] = round(server.memory("VmHWM"))
    result["load"] = round(os.getloadavg()[0], 1)
    turns = server.turns()
    result["turn_cpu_ms"] = max((turn["cpu_ms"] for turn in turns), default=0.0)
    result["turn_held_ms"] = max((turn["held_ms"] for turn in turns), default=0.0)
    result["turns"] = turns
    return result


def show(result: dict[str, Any], *, turns: bool) -> None:
    print("  ".join(f"{name} {value}" for name, value in result.items() if name != "turns"), flush=True)
    for turn in result["turns"] if turns else []:
        times = f"held {turn['held_ms']} ms, of it {turn['cpu_ms']} its own, wall {turn['wall_ms']}"
        print(f"    {times}, {turn['callbacks']} callbacks; {turn['slow']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of: {', '.join(KINDS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--turns", action="store_true", help="what the longest turns of the server's loop were made of")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        logging.getLogger("asyncio").setLevel(logging.ERROR)  # writes to sockets that the server has closed
        asyncio.run(attack(args.kinds[0], args.attack, args.seconds, args.seed))
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            quiet = time.monotonic() + args.seconds
            rows.append(row("none", asyncio.run(honest(server.url, lambda: time.monotonic() > quiet)), server))
            show(rows[-1], turns=args.turns)
            for kind in args.kinds or KINDS:
                options = ["--seconds", str(args.seconds), "--seed", str(args.seed), "--attack", server.url]
                attacker = subprocess.Popen([sys.executable, "-m", "tests.attacks.storm", kind, *options], cwd=ROOT)
                rows.append(row(kind, asyncio.run(honest(server.url, lambda a=attacker: a.poll() is not None)), server))
                show(rows[-1], turns=args.turns)
            alive = server.process.poll() is None
            print(f"the server is {'alive' if alive else 'gone'}; its log has {server.log.stat().st_size:,} bytes")
        finally:
            server.close()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0 if alive else 1


if __name__ == "__main__":
    sys.exit(main())
