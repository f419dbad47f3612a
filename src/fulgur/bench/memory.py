"""How much memory the engine's process holds, as the server starts it, with its KV cache in full use."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.process import EngineClient


def memory_ratio(folder: Path) -> tuple[float, int]:
    """Resident bytes over weights + KV cache, and the resident bytes."""
    return asyncio.run(_measure(folder))


async def _measure(folder: Path) -> tuple[float, int]:
    client = await EngineClient.start(folder)
    try:
        info = client.info
        # Different prompts until every block of the cache has been written: untouched pages would not count.
        length = min(info.context - 8, 1024)
        for i in range(-(-info.kv_tokens // length)):
            prompt = [(i * 977 + j * (i + 3)) % info.vocab_size for j in range(length)]
            async for _ in client.generate(GenerateRequest(prompt, SamplingParams(max_tokens=4, ignore_eos=True))):
                pass
        assert client.pid is not None
        resident = _resident(client.pid)
        return resident / (info.weight_bytes + info.kv_bytes), resident
    finally:
        await client.close()


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the system does not say how much memory a process holds")
