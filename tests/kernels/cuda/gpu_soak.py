"""`python tests/kernels/cuda/gpu_soak.py`: `fulgur serve --device cuda` under 16 mixed clients.

A folder with random weights, a server over it, and clients that stream, steer, cancel, hang up, and ask with long
prompts and schemas (`soak_clients.py`). Every answer is checked; at the end both processes are the same, nothing runs
any more, and memory has not grown since a third of the time. `--device cpu --model tiny` tries the script itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from shutil import which
from statistics import median, quantiles

import aiohttp
import numpy as np
from soak_clients import TEMPLATE, Asked, Client, Tally

from fulgur.bench.gpu import write_tokenizer
from fulgur.kernels.cuda.shapes import SHAPES
from fulgur.model.bfloat16 import to_bfloat16
from fulgur.model.config import ModelConfig
from fulgur.model.random import RandomSource, random_model, tiny_config, write_hf_folder
from fulgur.model.safetensors import write_safetensors
from fulgur.model.tensors import tensor_shapes
from fulgur.sandbox import start

LONGEST = 6000  # tokens of a prompt with its answer
PATIENCE = 60.0  # seconds for one request, and for all to end
NOISE = np.random.default_rng(3).standard_normal(4_000_037, np.float32)  # odd: rows of a matrix begin elsewhere
SLACK = 0.05, 48 << 20  # by how much memory may grow after the first third: a part of itself and some bytes


def shape(name: str) -> ModelConfig:
    """A shape of the benchmarks, `tiny`, or the beginning of a case of `gpu_families.py`."""
    if name == "tiny":
        return tiny_config("llama", head_dim=64, d_model=128, vocab_size=1003, max_context=8192)
    if name in SHAPES:
        return SHAPES[name]
    from gpu_families import CASES

    cases = [config for case, (config, _) in CASES.items() if case.startswith(name)]
    if not cases:
        sys.exit(f"--model {name}: not one of tiny, {', '.join([*SHAPES, *CASES])}")
    return cases[0]


def write_model(folder: Path, config: ModelConfig) -> None:
    """In bf16. Large matrices are cut out of one stretch of noise: making each would take longer than the soak."""
    source, shapes = RandomSource(config, 3), tensor_shapes(config)
    if max(map(prod, shapes.values())) < len(NOISE):
        write_hf_folder(folder, config, random_model(config, 3), dtype="BF16")
    else:
        stored: dict[str, tuple[str, np.ndarray]] = {}
        scaled: dict[int, np.ndarray] = {}
        for name, size in shapes.items():
            if prod(size) < len(NOISE):
                stored[name] = ("BF16", to_bfloat16(source.tensor(name)))
            else:
                if (width := size[-1]) not in scaled:
                    scaled[width] = to_bfloat16(NOISE * np.float32(width**-0.5))
                stored[name] = ("BF16", np.resize(np.roll(scaled[width], zlib.crc32(name.encode())), size))
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", stored, {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config.to_json()), encoding="utf-8")
    write_tokenizer(folder, config.vocab_size)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


class Served:
    """`fulgur serve` in a process of its own, with its log and its memory."""

    def __init__(self, folder: Path, home: Path, device: str) -> None:
        self.log = home / "log.txt"
        command = start.python("fulgur", "serve", "-m", str(folder), "--device", device, "--port", "0")
        env = start.environment({"FULGUR_HOME": str(home)})
        with self.log.open("wb") as log:
            self.process = start.popen(command, home, env, stdout=log, stderr=log)
        self.url = ""

    async def ready(self, seconds: float) -> str:
        """Wait until the model is loaded; what the server says about it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            said = self.log.read_text(encoding="utf-8", errors="replace")
            if found := re.search(r"listens on (http://\S+)/v1", said):
                self.url = found[1]
            if found := re.search(r"^ +\S+: (on the .*)$", said, re.MULTILINE):
                return found[1]
            if re.search("^fulgur: ", said, re.MULTILINE):
                break
            await asyncio.sleep(0.1)
        raise SystemExit(f"the server did not start:\n{self.last_words()}")

    def pids(self) -> list[int]:
        """The server, then its engine; not the process that tries out grammars, which may die."""
        pid, engines = self.process.pid, []
        with suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
                with suppress(OSError):
                    if b"fulgur.engine.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                        engines.append(int(child))
        return [pid, *engines]

    def last_words(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except start.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Sample:
    """Bytes and open files of a moment; `gpu` is all that is taken on the device, 0 without one."""

    at: float
    server: int
    engine: int
    gpu: int
    files: int


def resident(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


async def gpu_memory(device: str) -> int:
    if not device.startswith("cuda"):
        return 0
    index = device.partition(":")[2] or "0"
    if (smi := which("nvidia-smi")) is None:
        import torch

        free, total = torch.cuda.mem_get_info(int(index))
        return int(total - free)
    asked = [smi, "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", index]
    child = await start.spawn(asked, start.ROOT, stdout=start.PIPE)
    said, _ = await child.communicate()
    return int(said) << 20


async def watch(served: Served, device: str, samples: list[Sample]) -> None:
    """A sample a second until cancelled."""
    pids = served.pids()
    while True:
        files = 0
        for pid in pids:
            with suppress(OSError):
                files += len(os.listdir(f"/proc/{pid}/fd"))
        at, gpu = time.monotonic(), await gpu_memory(device)
        samples.append(Sample(at, resident(pids[0]), sum(map(resident, pids[1:])), gpu, files))
        await asyncio.sleep(1.0)


def grown(samples: list[Sample], begin: float, seconds: float) -> tuple[list[str], list[str]]:
    """Lines of the table, and what has grown: the last tenth of the time against the one after the first third."""

    def around(part: float, name: str) -> int:
        wanted = begin + seconds * part
        near = sorted(samples, key=lambda sample: abs(sample.at - wanted))[: max(3, int(seconds / 10))]
        return int(median(getattr(sample, name) for sample in near))

    lines, wrong = [], []
    for name, title in (("server", "server, MB"), ("engine", "engine, MB"), ("gpu", "GPU, MB")):
        third, last = around(1 / 3, name), around(0.98, name)
        lines.append(f"{title:34} {third / 1e6:10,.0f} after a third, {last / 1e6:,.0f} at the end")
        if last > third * (1 + SLACK[0]) + SLACK[1]:
            wrong.append(f"memory of the {name} grew from {third / 1e6:,.0f} to {last / 1e6:,.0f} MB")
    return lines, wrong


async def alone(client: Client, asked: Asked, wrong: list[str]) -> None:
    """One sequence alone runs in the decode kernels: once its prompt is cached, a seed gives the same text again."""
    body = client.create(asked, temperature=0.8, seed=11, top_p=1, top_k=None, presence_penalty=0, store=False)
    texts = [await client.answered(asked, body) for _ in range(3)]
    if texts[1] != texts[2]:
        wrong.append(f"the same seed and prompt, alone: {texts[1][:60]!r}, then {texts[2][:60]!r}")


async def idle(http: aiohttp.ClientSession) -> str:
    """What still runs some seconds after the last client has gone; empty when nothing does."""
    found = ""
    for _ in range(100):
        async with http.get("/status") as answer:
            status = await answer.json()
        found = ", ".join(f"{status[name]} {name}" for name in ("running", "queued", "sockets") if status[name])
        if not found:
            break
        await asyncio.sleep(0.2)
    return found


async def drive(served: Served, options: argparse.Namespace, config: ModelConfig, name: str) -> int:
    print(f"{name}: {await served.ready(options.start)}; {time.monotonic() - BEGAN:.0f} s until here", flush=True)
    if options.device.startswith("cuda") and "on the GPU" not in served.last_words():
        raise SystemExit(f"not on the GPU:\n{served.last_words()}")
    if len(served.pids()) != 2:
        raise SystemExit(f"not one engine beside the server: {served.pids()}")
    pids, tally, samples, wrong = served.pids(), Tally(), list[Sample](), list[str]()
    left = options.within - (time.monotonic() - BEGAN) - 15  # for the last answers and the checks
    seconds = min(options.seconds, max(left, 5)) if options.within else options.seconds
    longest = min(LONGEST, config.max_context)
    patience = aiohttp.ClientTimeout(total=PATIENCE)
    http = aiohttp.ClientSession(
        served.url, timeout=patience, read_bufsize=1 << 22, connector=aiohttp.TCPConnector(limit=0)
    )
    async with http:
        watching = asyncio.create_task(watch(served, options.device, samples))
        begin = time.monotonic()

        async def loop(number: int) -> None:
            client = Client(http, name, number, longest, tally)
            while time.monotonic() < begin + seconds and served.process.poll() is None:
                try:
                    async with asyncio.timeout(PATIENCE):
                        await client.once()
                except TimeoutError:
                    tally.errors.append(f"client {number} waited {PATIENCE:.0f} s for an answer")

        await asyncio.gather(*map(loop, range(options.clients)))
        took = time.monotonic() - begin
        watching.cancel()
        wrong += tally.errors
        try:
            if running := await idle(http):
                wrong.append(f"after the last client: {running}")
            lone, asked = Client(http, name, 99, longest, Tally()), Asked("tell me " * 40, 60)
            await alone(lone, asked, wrong)
            async with http.get("/healthz") as answer:
                health = await answer.json()
            if answer.status != 200 or health["status"] != "ok":
                wrong.append(f"/healthz: {answer.status} {health}")
        except Exception as error:  # whatever it is, the table shall be seen
            wrong.append(f"at the end: {type(error).__name__}: {error}")
    if served.pids() != pids:
        wrong.append(f"processes {pids} at the start, {served.pids()} at the end")
    lines, more = grown(samples, begin, took)
    wrong += more
    print_table(tally, took, options.clients, samples, lines)
    for line in wrong[:5]:
        print(f"ERROR {line}")
    if wrong:
        print(f"{len(wrong)} errors. The server's last words:\n{served.last_words()}")
    else:
        print("no error, no leak")
    return 1 if wrong else 0


def print_table(tally: Tally, took: float, clients: int, samples: list[Sample], memory: list[str]) -> None:
    first = sorted(tally.first_tokens) or [0.0]
    cuts = quantiles(first, n=100) if len(first) > 1 else first * 99
    asked = sum(tally.kinds.values())
    rows = {
        "seconds, clients": f"{took:10.0f}, {clients}",
        "requests ended as promised": f"{asked:10,}, {tally.cut:,} of them cut, {tally.steered:,} steered",
        "tokens/s in total": f"{tally.tokens / took:10,.0f}",
        "input tokens/s (cached)": f"{tally.prompts / took:10,.0f} ({tally.cached / max(tally.prompts, 1):.0%})",
        "first token, ms": f"{1e3 * cuts[49]:10,.0f} p50, {1e3 * cuts[98]:,.0f} p99",
        "open files": f"{samples[0].files if samples else 0:10} first, {samples[-1].files if samples else 0} last",
    }
    for title, value in rows.items():
        print(f"{title:34} {value}")
    print("\n".join(memory))
    print("  ".join(f"{kind} {count}" for kind, count in sorted(tally.kinds.items())), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/kernels/cuda/gpu_soak.py", description=__doc__)
    parser.add_argument("--model", default="llama-3.2-1b", metavar="NAME", help="a shape, or a case of gpu_families.py")
    parser.add_argument("--device", default="cuda", metavar="NAME", help="as `fulgur serve` takes it")
    parser.add_argument("--seconds", type=float, default=90, help="how long the clients ask")
    parser.add_argument("--within", type=float, default=0, metavar="SECONDS", help="ask less long, to end by then")
    parser.add_argument("--start", type=float, default=120, metavar="SECONDS", help="for the server to be ready")
    parser.add_argument("--clients", type=int, default=16, metavar="N")
    options = parser.parse_args()
    config = shape(options.model)
    with tempfile.TemporaryDirectory(prefix="fulgur-soak-") as place:
        name = re.sub(r"[^a-z0-9]+", "-", options.model)
        home, folder = Path(place, "home"), Path(place, name)
        home.mkdir()
        write_model(folder, config)
        print(f"the model is written after {time.monotonic() - BEGAN:.0f} s", flush=True)
        served = Served(folder, home, options.device)
        try:
            return asyncio.run(drive(served, options, config, name))
        finally:
            served.close()


BEGAN = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
