"""Every part of a cluster is killed in turn while clients stream: nobody sees more of it than a pause.

FULGUR_KILL_SECONDS is how long (70), FULGUR_KILL_CLIENTS how many clients (6), FULGUR_KILL_EVERY the seconds between
two kills (10).
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import time
from collections import Counter
from itertools import cycle
from pathlib import Path

import aiohttp
import pytest
from databases import Postgres, RedisServer
from parts import Client, Part, RayActor, Seen, chatting_model, free_port

from fulgur.cluster import announce
from fulgur.cluster.address import Address
from fulgur.cluster.engine import ClusterEngine, members
from fulgur.cluster.fingerprint import fingerprint
from fulgur.server import config as settings
from fulgur.server.live import base as live_state

SECONDS = float(os.environ.get("FULGUR_KILL_SECONDS", "70"))
CLIENTS = int(os.environ.get("FULGUR_KILL_CLIENTS", "6"))
EVERY = float(os.environ.get("FULGUR_KILL_EVERY", "10"))
PROMPTS = 8

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(SECONDS * 3 + 400)]


class World:
    """Two fronts and three replicas over real databases."""

    def __init__(self, folder: Path, postgres: Postgres, redis: RedisServer, placement: str) -> None:
        self.folder, self.postgres, self.redis, self.ray = folder, postgres, redis, placement == "ray"
        self.model, self.secret = chatting_model(folder / "model"), secrets.token_hex(16)
        (folder / "key").write_text(self.secret)
        (folder / "key").chmod(0o600)
        self.replicas = [] if self.ray else [f"127.0.0.1:{free_port()}" for _ in range(3)]
        self.ports = [free_port() for _ in range(2)]
        self.urls = [f"http://127.0.0.1:{port}/v1" for port in self.ports]
        self.database = postgres.url()
        names = [f"front{number}" for number in range(2)]
        for name, port in zip(names, self.ports, strict=True):
            self._config(name, port)
        self.fronts = [
            Part(name, ["serve", "--file", str(folder / f"{name}.toml")], folder, "coder: on") for name in names
        ]
        file = str(folder / "front0.toml")
        self.parts: list[Part] = []
        self.engines: list[Part | RayActor]
        if self.ray:
            self.parts = [Part("ray", ["cluster", "up", "--file", file], folder, "Ray starts the replicas")]
            self.engines = [RayActor("ServeReplica", number, folder) for number in range(3)]
        else:
            words = ["cluster", "replica", "--file", file, "--slot"]
            self.parts = [Part(f"replica{n}", [*words, str(n)], folder, "listens on") for n in range(3)]
            self.engines = [*self.parts]

    def _config(self, name: str, port: int, kv_tokens: int = 16384) -> None:
        replicas = "" if self.ray else f"replicas = {self.replicas}\n"
        placed = 'placement = "ray"\nfronts = 0\nleast = 3\nmost = 3\n' if self.ray else ""
        (self.folder / f"{name}.toml").write_text(
            f'[server]\nport = {port}\nstore = "{self.database}"\nlive = "{self.redis.url}"\n'
            f'[cluster]\nsecret_file = "{self.folder}/key"\n{placed}'
            f'[models.coder]\nbackend = "cluster"\npath = "{self.model}"\n{replicas}'
            f"threads = 1\nkv_tokens = {kv_tokens}\ncontext = 2048\n"
        )

    async def members(self) -> dict[int, Address]:
        if not self.ray:
            return members(self.replicas)
        config = settings.load(self.folder / "front0.toml")
        live = live_state.make(config)
        await live.open()
        found = await announce.members(live, "coder")
        await live.close()
        return found

    async def start(self) -> None:
        await asyncio.gather(*(part.start() for part in self.parts))
        end = time.monotonic() + 180
        while self.ray and len(await self.members()) < 3:
            assert time.monotonic() < end, "Ray starts no replicas"
            await asyncio.sleep(0.5)
        await self.fronts[0].start()  # the first makes the tables
        await self.fronts[1].start()

    async def update(self) -> None:
        """Replace the replicas by ones with another cache, while clients stream."""
        before = set((await self.members()).values())
        self._config("front0", self.ports[0], kv_tokens=8192)
        self.parts[0].signal(signal.SIGUSR1)
        end = time.monotonic() + 240
        while len(now := set((await self.members()).values())) < 3 or now & before:
            assert time.monotonic() < end, (before, now)
            await asyncio.sleep(0.5)

    def stop(self) -> None:
        for part in (*self.fronts, *self.parts):
            part.stop()


@pytest.mark.parametrize("placement", ["processes", "ray"])
async def test_kill_each_part_in_turn(
    tmp_path: Path, postgres: Postgres, redis_running: RedisServer, placement: str
) -> None:
    if placement == "ray":
        pytest.importorskip("ray", reason="pip install -e '.[ray]'")
    world = World(tmp_path, postgres, redis_running, placement)
    try:
        await world.start()
        await drive(world)
        await nothing_is_left(world)
    finally:
        world.stop()


async def drive(world: World) -> None:
    urls = world.urls
    # Long: who gives up a plain HTTP stream cancels its answer, and a busy machine may be silent for a while.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=120)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        calm = Client(0, urls, http)
        expected = {prompt: (await calm.ask(prompt)).text for prompt in range(PROMPTS)}
        assert all(expected.values())
        clients = [Client(number, urls, http) for number in range(1, CLIENTS + 1)]
        steerer = Client(1000, urls, http)
        over = time.monotonic() + SECONDS
        killing = asyncio.create_task(kill_in_turn(world, over))

        async def work(client: Client) -> None:
            turn = 0
            while time.monotonic() < over:
                turn += 1
                await client.ask((client._dice.randrange(PROMPTS) + turn) % PROMPTS)

        steered = []

        async def steer() -> None:
            while time.monotonic() < over:
                steered.append(await steerer.steer(0))
                await asyncio.sleep(0.5)

        await asyncio.gather(steer(), *(work(client) for client in clients))
        kills = await killing
        if world.ray:  # then an update: old replicas finish what they do, nobody sees it
            updating = asyncio.create_task(world.update())
            while not updating.done():
                await asyncio.gather(*(client.ask(client._dice.randrange(PROMPTS)) for client in clients))
            await updating
        everything = [seen for client in (calm, *clients) for seen in client.seen]
        print(f"\n{len(everything)} responses, {sum(seen.replays for seen in everything)} read on elsewhere,", end=" ")
        print(f"{sum(len(seen.steers) for seen in steered)} steers, kills: {dict(Counter(kills))}")
        for seen in everything:
            assert len(seen.ends) == 1, seen.id
            assert seen.numbers == list(range(len(seen.numbers))), seen.id
            assert seen.ends[0]["status"] in ("completed", "incomplete"), seen.ends[0]["error"]
            assert seen.text == expected[seen.prompt], (seen.id, seen.ends[0]["incomplete_details"])
        for seen in steered:
            assert expected[seen.prompt].startswith(seen.text), f"{seen.id}: the text before the steer"
            for name, outcomes in seen.steers.items():
                # After a socket was lost, the response's end says whether the steer turned it.
                assert len(outcomes) == 1 or (seen.cut and not outcomes and seen.ends), (seen.id, name, outcomes)
        await stored_as_seen(urls, http, everything)
        await rows_as_seen(world.database, [calm, steerer, *clients], everything, steered)
        await idle(urls, http)


async def kill_in_turn(world: World, over: float) -> list[str]:
    """One part after the other; it is started again a second later, as whoever places parts would."""
    killed = []
    engines, fronts = world.engines, world.fronts
    parts = [engines[0], fronts[0], world.redis, engines[1], fronts[1], world.postgres, engines[2]]
    if world.ray:
        parts.append(RayActor("ServeController", 0, world.folder))
    for part in cycle(parts):
        await asyncio.sleep(EVERY)
        if time.monotonic() > over:
            return killed
        await asyncio.to_thread(part.kill)
        killed.append(part.name if isinstance(part, Part | RayActor) else type(part).__name__)
        await asyncio.sleep(1.0)
        if isinstance(part, Part | RayActor):
            await part.start()
        else:
            await asyncio.to_thread(part.start)
    return killed


async def stored_as_seen(urls: list[str], http: aiohttp.ClientSession, everything: list[Seen]) -> None:
    """Every response that ended is in the store, as its client saw it."""
    for number, seen in enumerate(everything):
        async with http.get(f"{urls[number % 2]}/responses/{seen.id}") as answer:
            assert answer.status == 200, seen.id
            stored = await answer.json()
        assert "".join(part["text"] for item in stored["output"] for part in item["content"]) == seen.text
        assert stored["usage"]["output_tokens"] == seen.ends[0]["usage"]["output_tokens"]


async def rows_as_seen(database: str, clients: list[Client], everything: list[Seen], steered: list[Seen]) -> None:
    """One row for each response whose end was seen, with the tokens that its client was told, and no other row.

    Of a create that died before its client knew the response's name there may be one row: it may have ended.
    """
    import asyncpg

    connection = await asyncpg.connect(database)
    try:
        used = {row["id"]: row["output"] for row in await connection.fetch("SELECT id, output FROM answers")}
        rows = {
            row["id"]: json.loads(row["response"])
            for row in await connection.fetch("SELECT id, response FROM responses")
        }
    finally:
        await connection.close()
    assert set(rows) == set(used), "a response and what it used are committed together"
    steers = [each for seen in steered for each in (seen, seen.successor) if each is not None]
    ended = [seen for seen in (*everything, *steers) if seen.ends]
    told = {seen.id: seen.ends[0]["usage"]["output_tokens"] for seen in ended}
    assert {name: used.get(name) for name in told} == told
    tries = {name: known for client in clients for name, known in client.tries.items()}
    unseen = Counter(rows[name]["metadata"]["try"] for name in set(rows) - set(told))
    cut = {seen.id for seen in steered if seen.cut}  # the name of a successor may be lost with the socket
    for name, count in unseen.items():
        assert count == 1 and (not tries[name] or tries[name] in cut), (name, tries[name], count)


async def idle(urls: list[str], http: aiohttp.ClientSession) -> None:
    """No run is left at any front."""
    end = time.monotonic() + 30
    for url in urls:
        while True:
            async with http.get(f"{url.removesuffix('/v1')}/metrics") as answer:
                lines = (await answer.text()).splitlines()
            running = [line for line in lines if line.startswith("fulgur_responses_running ")]
            if not running or float(running[0].split()[1]) == 0:
                break
            assert time.monotonic() < end, running
            await asyncio.sleep(0.2)


async def nothing_is_left(world: World) -> None:
    """No generation is left at any replica."""
    engine = await ClusterEngine.start(await world.members(), world.secret.encode(), fingerprint(world.model))
    try:
        end = time.monotonic() + 30
        while not all(link.ready and not link.running for link in engine.links.values()):
            assert time.monotonic() < end, [(link.address, link.running) for link in engine.links.values()]
            await asyncio.sleep(0.1)
    finally:
        await engine.close()
