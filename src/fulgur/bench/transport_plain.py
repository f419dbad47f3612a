"""The server most people would write: pydantic models, dumped one event at a time into server-sent events.

It streams the same scripted backend as Fulgur's server, with the same events, so that the two can be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any, Literal

from aiohttp import web
from pydantic import BaseModel

from fulgur.backends.base import Conversation, Turn
from fulgur.backends.scripted import ScriptedBackend, load_script
from fulgur.text.parts import TextDelta


class Delta(BaseModel):
    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    sequence_number: int
    item_id: str
    output_index: int = 0
    content_index: int = 0
    delta: str
    logprobs: list[dict[str, Any]] = []


class Request(BaseModel):
    model: str
    input: list[dict[str, Any]]


class Completed(BaseModel):
    type: Literal["response.completed"] = "response.completed"
    sequence_number: int
    output_text: str


async def serve(script: Path) -> None:
    backend = ScriptedBackend("scripted", load_script(script))

    async def create(request: web.Request) -> web.StreamResponse:
        body = Request.model_validate_json(await request.read())
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        number = 0
        pieces = []
        async for part in backend.generate(Turn(Conversation(body.input))):
            if isinstance(part, TextDelta):
                pieces.append(part.text)
                event = Delta(sequence_number=number, item_id="msg_0123456789abcdef0123456789abcdef", delta=part.text)
                await answer.write(f"event: {event.type}\ndata: {event.model_dump_json()}\n\n".encode())
                number += 1
        last = Completed(sequence_number=number, output_text="".join(pieces))
        await answer.write(f"event: {last.type}\ndata: {last.model_dump_json()}\n\n".encode())
        return answer

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=f"process_cpu_seconds_total {time.process_time():.6f}\n")

    app = web.Application()
    app.router.add_post("/v1/responses", create)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("script", type=Path)
    asyncio.run(serve(parser.parse_args().script))
