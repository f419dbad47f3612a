"""Replays the events of a stored response from a number on; those of a running one continue live."""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from fulgur.server.emitter import EventLog
from fulgur.server.sinks import SseSink


class _Kind(msgspec.Struct):
    type: str


_kind = msgspec.json.Decoder(_Kind)


async def stored(request: web.Request, events: list[bytes], after: int) -> web.StreamResponse:
    sink = await SseSink.open(request)
    for data in events[after + 1 :]:
        send(sink, data)
        if sink.full():
            await sink.drain()
    return await sink.close()


def send(sink: SseSink, data: bytes) -> None:
    sink.send(_kind.decode(data).type.encode(), data)


async def live(request: web.Request, log: EventLog, after: int) -> web.StreamResponse:
    sink = await SseSink.open(request)
    await follow(sink, log, after + 1)
    return await sink.close()


async def follow(sink: SseSink, log: EventLog, place: int) -> None:
    """Send the events of a log from `place` on, until it ends."""
    wake = asyncio.Event()
    log.followers.add(wake.set)
    try:
        while True:
            wake.clear()
            while place < len(log.events):
                sink.send(*log.events[place])
                place += 1
                if sink.full():
                    await sink.drain()
            if log.ended:
                return
            await wake.wait()
    finally:
        log.followers.discard(wake.set)
