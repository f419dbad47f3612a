"""`fulgur bench variants`: what five variants of an answer cost relative to one, on the engine of this machine.

Both are requested as the agent does it: one request after the prompt is in the cache, and five at once that share that
prompt, each sampled with a different seed and without drafts. A ratio is the median over rounds that time one and five
in turn. The 60M is compute-bound: five rows cost more than one. The 0.5B is memory-bound: five rows read the weights
once.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from fulgur.bench.quiet import Watch, too_far
from fulgur.bench.report import Report
from fulgur.bench.shapes import SEED, SHAPES
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.engine.process import EngineClient
from fulgur.workspace.folders import embedded_models

COUNT = 5
BARS = {"60M": 2.6, "0.5B": 1.6}
_PROMPT, _TOKENS = 512, 96
_ROUNDS, _QUICK_ROUNDS = 9, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this bench."""
    parser.add_argument(
        "--quick", action="store_true", help="two short rounds, to check that it works; not to be quoted"
    )
    parser.add_argument("--model", choices=list(BARS), action="append", help="only this one (may be given twice)")


def run(args: argparse.Namespace) -> Report:
    """Measure both models, one after the other."""
    report = Report("fulgur bench variants" + (", two short rounds: not to be quoted" if args.quick else ""))
    watch = Watch()
    rounds, tokens = (_QUICK_ROUNDS, 16) if args.quick else (_ROUNDS, _TOKENS)
    for name in args.model or BARS:
        with _folder(name) as folder:
            times = asyncio.run(measure(folder, rounds, tokens))
        ratios = [five / one for one, five in times]
        report.add(f"variants.ratio.{COUNT}.{name}", median(ratios), "times one", bar=BARS[name], at_most=True)
        report.add(f"variants.one_ms.{name}", 1e3 * median(one for one, _ in times), "ms")
        report.add(f"variants.tokens_s.{name}", median(COUNT * tokens / five for _, five in times), "tok/s, all five")
        if too_far(ratios):
            report.notes.append(f"{name}: the rounds lie far apart: not to be quoted")
    report.notes += watch.notes()
    report.notes.append(f"{_PROMPT} tokens of prompt in the cache, {tokens} written by each, sampled, no drafts")
    return report


async def measure(folder: Path, rounds: int, tokens: int) -> list[tuple[float, float]]:
    """Seconds of one answer and of five at once, round by round."""
    client = await EngineClient.start(folder)
    try:
        info = client.info
        length = min(_PROMPT, info.context - tokens - 8)
        prompt = [(977 * j + 13) % info.vocab_size for j in range(length)]
        await _answers(client, prompt, 1, tokens, seed=0)  # the prompt is in the cache from here on
        times = []
        for number in range(1, rounds + 1):
            one = await _answers(client, prompt, 1, tokens, seed=1000 * number)
            five = await _answers(client, prompt, COUNT, tokens, seed=1000 * number)
            times.append((one, five))
        return times
    finally:
        await client.close()


async def _answers(client: EngineClient, prompt: list[int], count: int, tokens: int, *, seed: int) -> float:
    """Seconds until `count` answers are whole."""

    async def one(number: int) -> None:
        params = SamplingParams(max_tokens=tokens, temperature=0.8, seed=seed + number, ignore_eos=True)
        async for _ in client.generate(GenerateRequest(prompt, params, speculate=False)):
            pass

    began = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(count)))
    return time.perf_counter() - began


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    """The shipped model of that name, else one of its shape with random weights."""
    for folder in embedded_models():
        if folder.name == name:
            yield folder
            return
    from fulgur.bench.replay import write_tokenizer
    from fulgur.bench.weights import AheadSource
    from fulgur.model.packed_folder import save_packed
    from fulgur.model.weights import assemble

    with tempfile.TemporaryDirectory(prefix="fulgur-bench-") as place:
        tokenizer = Path(place) / "tokenizer"
        write_tokenizer(tokenizer)
        with AheadSource(SHAPES[name], SEED) as source:
            save_packed(assemble(source, bits=4), Path(place) / name, companions=tokenizer)
        yield Path(place) / name
