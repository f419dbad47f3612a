"""How much memory the engine's process holds, started as a server starts it, with its KV cache in full use."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.process import EngineClient


@dataclass(frozen=True)
class Memory:
    resident: int
    needed: int  # weights and KV cache

    @property
    def ratio(self) -> float:
        return self.resident / self.needed

    @property
    def beyond(self) -> int:
        """The interpreter, the libraries, the tokenizer and buffers: nearly the same for every model."""
        return self.resident - self.needed


def measure_memory(folder: Path, kv_tokens: int | None = None) -> Memory:
    """Start the engine on a packed folder, fill its cache (of `kv_tokens`, or a server's default), and measure."""
    return asyncio.run(_measure(folder, kv_tokens))


async def _measure(folder: Path, kv_tokens: int | None) -> Memory:
    client = await EngineClient.start(folder, kv_tokens=kv_tokens)
    try:
        info = client.info
        # Send different prompts until every block of the cache has been written: untouched pages would not count.
        length = min(info.context - 8, 1024)
        for i in range(-(-info.kv_tokens // length)):
            prompt = [(i * 977 + j * (i + 3)) % info.vocab_size for j in range(length)]
            async for _ in client.generate(GenerateRequest(prompt, SamplingParams(max_tokens=4, ignore_eos=True))):
                pass
        assert client.pid is not None
        return Memory(_resident(client.pid), info.weight_bytes + info.kv_bytes)
    finally:
        await client.close()


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not report a process's memory")
