"""Redirect an answer at the next token and keep what was said: `python examples/steer.py MODEL`, with a chat model."""

import asyncio
import os
import sys

from fulgur.client import Connection
from fulgur.protocol.events import OutputTextDelta


async def main(model: str) -> None:
    connection = await Connection.open(os.environ.get("FULGUR_URL", "http://127.0.0.1:8787/v1"))
    try:
        stream = await connection.create({"model": model, "input": "Count slowly to fifty.", "store": False})
        seen = 0
        async for event in stream:
            if isinstance(event, OutputTextDelta):
                print(event.delta, end="", flush=True)
                seen += 1
                if seen == 20:
                    # Decoding stops at the next token; the text so far and its KV cache stay.
                    await stream.steer("Stop counting. Say goodbye instead.", boundary="token")
        print()
    finally:
        await connection.close()


asyncio.run(main(sys.argv[1]))
