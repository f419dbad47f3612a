"""The parts of a cluster as processes that can be killed, and clients that keep what they saw."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from fulgur.workspace.folders import embedded_models

WAIT = aiohttp.ClientWSTimeout(ws_receive=120.0)
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
TEMPLATE = (
    "{% for m in messages %}# {{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant: {% endif %}"
)


def chatting_model(folder: Path) -> Path:
    """The embedded 30M with a chat template: its words make no sense, but they are always the same."""
    shipped = next(path for path in embedded_models() if path.name == "30M")
    folder.mkdir()
    for file in (*shipped.iterdir(), *shipped.parent.glob("tokenizer*.json")):  # the models share their tokenizer
        if file.name != "checksums.json":  # the template below is in none
            (folder / file.name).symlink_to(file)
    config = folder / "tokenizer_config.json"
    known = json.loads(config.read_text()) if config.exists() else {}
    config.unlink(missing_ok=True)
    config.write_text(json.dumps({**known, "chat_template": TEMPLATE}))
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Part:
    """A process of `fulgur` with its output in a file."""

    def __init__(self, name: str, words: list[str], folder: Path, ready: str) -> None:
        self.name = name
        self._words = words
        self._log = folder / f"{name}.log"
        self._folder = folder
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        begun = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            env = {**os.environ, "FULGUR_HOME": str(self._folder / "home")}
            command = [sys.executable, "-m", "fulgur", *self._words]
            self._process = subprocess.Popen(command, cwd=self._folder, env=env, stdout=log, stderr=log)
        end = time.monotonic() + 120
        while self._ready not in self._log.read_text(errors="replace")[begun:]:
            assert self._process.poll() is None and time.monotonic() < end, self._log.read_text()[-2000:]
            await asyncio.sleep(0.05)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(90)
            except subprocess.TimeoutExpired:
                self.kill()


class RayActor:
    """The n-th oldest actor of a kind that Ray runs for us; Ray starts another one by itself."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name = f"ray {name} {number}"
        self._name, self._number, self._folder = name, number, folder

    def kill(self) -> None:
        found = ray_actors(self._name, self._folder)
        if len(found) > self._number:  # Ray may not be done with the last death
            os.kill(found[self._number], signal.SIGKILL)

    async def start(self) -> None:
        pass


def ray_actors(name: str, folder: Path) -> list[int]:
    """Processes of Ray's actors that were started from this folder's home, by age."""
    home = f"FULGUR_HOME={folder / 'home'}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            ours = entry.name.isdecimal() and home in (entry / "environ").read_bytes().split(b"\0")
            if ours and (entry / "cmdline").read_bytes().startswith(f"ray::{name}".encode()):
                found.append(int(entry.name))
    return sorted(found)


@dataclass
class Seen:
    """One response as its client saw it."""

    prompt: int
    id: str = ""
    numbers: list[int] = field(default_factory=list)
    text: str = ""
    ends: list[dict[str, Any]] = field(default_factory=list)
    steers: dict[str, list[str]] = field(default_factory=dict)  # outcomes by the steer's id
    replays: int = 0
    cut: bool = False  # its socket was lost
    successor: Seen | None = None  # that a steer opened

    def take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "response.created" and not self.id:
            self.id = event["response"]["id"]
        self.numbers.append(event["sequence_number"])
        if kind == "response.output_text.delta":
            self.text += event["delta"]
        elif kind in TERMINAL:
            self.ends.append(event["response"])
        elif kind == "response.steer.accepted":
            self.steers.setdefault(event["steer"]["id"], [])
        elif kind == "response.steer.failed":
            self.steers.setdefault(str(event["steer"].get("id")), []).append("failed")


class Client:
    """Asks again and again, at any front; reads on elsewhere when one dies."""

    def __init__(self, number: int, fronts: list[str], http: aiohttp.ClientSession) -> None:
        self.tries: dict[str, str] = {}  # every create that was sent, and the response's id once it is known
        self._number = number
        self._dice = random.Random(number)
        self._fronts = fronts
        self._http = http
        self.seen: list[Seen] = []

    def body(self, prompt: int) -> dict[str, Any]:
        """A create; its name is stored with the response."""
        name = f"{self._number}-{len(self.tries)}"
        self.tries[name] = ""
        return {**self._body(prompt), "metadata": {"try": name}}

    def _body(self, prompt: int) -> dict[str, Any]:
        seeded = {"temperature": 0.8, "seed": prompt} if prompt % 2 else {}
        return {"model": "coder", "input": f"Write part {prompt} of a parser.", "max_output_tokens": 160, **seeded}

    async def ask(self, prompt: int, *, patience: float = 400.0) -> Seen:
        end = time.monotonic() + patience
        seen = Seen(prompt)
        while not seen.ends:
            assert time.monotonic() < end, f"no end of {seen.id or 'a request'} after {patience:g} s"
            front = self._dice.choice(self._fronts)
            try:
                if seen.id:
                    seen.replays += 1
                    after = seen.numbers[-1] if seen.numbers else -1
                    url = f"{front}/responses/{seen.id}?stream=true&starting_after={after}"
                    async with self._http.get(url) as answer:
                        await self._read(answer, seen)
                else:
                    body = {**self.body(prompt), "stream": True}
                    async with self._http.post(f"{front}/responses", json=body) as answer:
                        await self._read(answer, seen, body["metadata"]["try"])
            except (aiohttp.ClientError, ConnectionError, TimeoutError):
                pass
            if not seen.ends:
                await asyncio.sleep(0.3)
        self.seen.append(seen)
        return seen

    async def _read(self, answer: aiohttp.ClientResponse, seen: Seen, name: str = "") -> None:
        if answer.status != 200:
            return
        async for line in answer.content:
            if line.startswith(b"data: {"):
                seen.take(json.loads(line[6:]))
                if name:
                    self.tries[name] = seen.id

    async def steer(self, prompt: int) -> Seen:
        """A response that is steered from another front, unless something dies before the steer is sent."""
        front, other = self._dice.sample(self._fronts, 2)
        seen = Seen(prompt)
        body = self.body(prompt)
        try:
            async with self._http.ws_connect(f"{front}/responses", timeout=WAIT) as socket:
                await socket.send_json({"type": "response.create", **body})
                asked = False
                async for message in socket:
                    event = json.loads(message.data)
                    if event["type"] == "response.created" and seen.id:
                        seen.successor = Seen(prompt)
                        seen.successor.take(event)
                        for name in event.get("steers", ()):
                            seen.steers.setdefault(name, []).append("applied")
                        await socket.send_json({"type": "response.cancel", "response_id": seen.successor.id})
                        continue
                    if seen.successor is not None:
                        seen.successor.take(event)
                        if seen.successor.ends:
                            break
                        continue
                    seen.take(event)
                    self.tries[body["metadata"]["try"]] = seen.id
                    if event["type"] == "response.output_text.delta" and not asked:
                        asked = True
                        await self._steer_at(other if self._dice.random() < 0.5 else front, seen)
                    if seen.ends and all(seen.steers.values()):
                        break
                else:
                    seen.cut = True
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            seen.cut = True
        for each in (seen, seen.successor):
            if each is not None and each.id and not each.ends:
                await self._rest(each)
        return seen

    async def _steer_at(self, front: str, seen: Seen) -> None:
        steer = {"type": "response.steer", "previous_response_id": seen.id, "input": "Shorter.", "boundary": "token"}
        async with self._http.ws_connect(f"{front}/responses", timeout=WAIT) as socket:
            await socket.send_json(steer)
            message = await socket.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise ConnectionError("the front is gone")
            answer = json.loads(message.data)
            named = str(answer["steer"].get("id"))
            outcomes = seen.steers.setdefault(named, [])
            if answer["type"] == "response.steer.failed":
                outcomes.append("refused")

    async def _rest(self, seen: Seen) -> None:
        end = time.monotonic() + 90
        while not seen.ends and time.monotonic() < end:
            try:
                after = seen.numbers[-1]
                url = f"{self._dice.choice(self._fronts)}/responses/{seen.id}?stream=true&starting_after={after}"
                async with self._http.get(url) as answer:
                    await self._read(answer, seen)
            except (aiohttp.ClientError, ConnectionError, TimeoutError):
                pass
            if not seen.ends:
                await asyncio.sleep(0.3)
