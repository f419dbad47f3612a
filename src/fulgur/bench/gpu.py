"""`fulgur bench gpu`: the GPU engine as a server uses it: decoding beside the bare loop, prompts beside transformers.

The difference between engine and loop is what the host adds to a token: reading the ring, turning tokens into text,
reporting them. Then sampling and many streams, then edits and long contexts, then prompts. Random weights, speculation
only for edits, medians of several runs.
`python -m fulgur.bench.gpu_decode` measures how long each kernel takes. `python -m fulgur.bench.gpu` runs this where
little is installed.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from fulgur.bench import gpu_contexts, gpu_families, gpu_prompts, gpu_streams
from fulgur.bench.report import Report
from fulgur.errors import UsageError

if TYPE_CHECKING:
    from fulgur.kernels.cuda.runtime import Runtime
    from fulgur.text.tokenizer import Tokenizer

PROMPT, STEPS, RUNS = 512, 448, 5
PARTS = ("loop", "streams", "edits", "contexts", "prompts")
HOST_MICROSECONDS = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from fulgur.kernels.cuda.shapes import FAMILY_SHAPES, SHAPES

    names = ", ".join([*SHAPES, *FAMILY_SHAPES])
    parser.add_argument("--model", default="llama-3.2-1b", metavar="NAME", help=f"one of {names}")
    parser.add_argument(
        "--weights", default="bf16", metavar="FORMAT", help="bf16, fp8, int4, or mxfp4 (the experts of gpt-oss)"
    )
    parser.add_argument("--driver", default="persistent", choices=("persistent", "graph"))
    parser.add_argument(
        "--prompts", default="512,2048,8192,32768", metavar="N,M", help="lengths of prompts to time; empty for none"
    )
    parser.add_argument(
        "--contexts", default="32768,131072", metavar="N,M", help="contexts to decode after; empty for none"
    )
    parser.add_argument(
        "--parts", metavar="NAME,NAME",
        help=f"some of {', '.join(PARTS)}; of a model of the general driver {', '.join(gpu_families.PARTS)}",
    )  # fmt: skip
    parser.add_argument("--no-peer", action="store_true", help="without transformers")


def run(args: argparse.Namespace) -> Report:
    from fulgur.kernels.cuda.open import usable
    from fulgur.kernels.cuda.runtime import open_random
    from fulgur.kernels.cuda.shapes import FAMILY_SHAPES, SHAPES
    from fulgur.text.tokenizer import Tokenizer

    if args.model in FAMILY_SHAPES:
        return _family(args)
    if args.model not in SHAPES:
        raise UsageError(f"--model: {args.model!r} is not one of {', '.join([*SHAPES, *FAMILY_SHAPES])}")
    parts = _parts(args, PARTS)
    lengths = _numbers("--prompts", args.prompts, 1) if "prompts" in parts else []
    contexts = _numbers("--contexts", args.contexts, 1024) if "contexts" in parts else []
    gpu = usable()
    rooms = [*(2 * length + gpu_prompts.CACHED for length in lengths), *contexts]
    most = max([PROMPT + 2 * STEPS, gpu_streams.ROOM, *rooms])
    runtime = open_random(SHAPES[args.model], weights=args.weights, kv_blocks=-(-most // 64), driver=args.driver)
    report = Report("fulgur bench gpu")
    report.machine["gpu"] = gpu.name
    with tempfile.TemporaryDirectory(prefix="fulgur-bench-") as folder:
        write_tokenizer(Path(folder), runtime.vocab_size)
        tokenizer, name = Tokenizer.from_folder(Path(folder)), f"{args.model}.{args.weights}"
        if "loop" in parts:
            measure(runtime, tokenizer, name, report)
        if "streams" in parts:
            gpu_streams.measure(runtime, tokenizer, name, report)
        if "edits" in parts:
            gpu_contexts.measure_edits(runtime, name, report)
        if contexts:
            gpu_contexts.measure(runtime, name, report, contexts)
        if lengths:
            gpu_prompts.measure(runtime, tokenizer, name, report, lengths)
    runtime.close()
    if lengths and not args.no_peer:
        del runtime
        free()
        gpu_prompts.measure_peer(args.model, name, report, lengths)
    return report


def _numbers(option: str, text: str, least: int) -> list[int]:
    try:
        found = [int(part) for part in text.split(",") if part]
    except ValueError:
        found = [0]
    if min(found, default=least) < least:
        raise UsageError(f"{option} {text}: must be numbers of tokens, at least {least}, separated by commas")
    return found


def _parts(args: argparse.Namespace, known: tuple[str, ...]) -> list[str]:
    """The requested parts, or all of them."""
    parts = list(known) if args.parts is None else str(args.parts).split(",")
    if unknown := set(parts) - set(known):
        raise UsageError(f"--parts: {', '.join(sorted(unknown))} is not one of {', '.join(known)}")
    return parts


def _family(args: argparse.Namespace) -> Report:
    """Measure a model of the general driver."""
    from fulgur.bench.gpu_decode import read_bandwidth
    from fulgur.kernels.cuda.open import usable

    parts = _parts(args, gpu_families.PARTS)
    gpu, report = usable(), Report("fulgur bench gpu")
    report.machine["gpu"] = gpu.name
    gpu_families.run_model(args.model, args.weights, read_bandwidth(gpu), report, parts)
    return report


def free() -> None:
    """Return unused memory to the GPU, because a peer needs it."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def measure(
    runtime: Runtime, tokenizer: Tokenizer, name: str, report: Report, *, prompt: int = PROMPT, steps: int = STEPS
) -> None:
    """Measure the loop alone, the engine on top of it, and how many steps it takes to stop a run."""
    import numpy as np

    from fulgur.engine.engine import Engine
    from fulgur.engine.params import GenerateRequest, SamplingParams

    tokens = np.random.default_rng(4).integers(0, runtime.vocab_size, prompt).astype(np.int32)
    table = np.arange(runtime.kv_blocks, dtype=np.int32)
    rows = np.arange(prompt, dtype=np.int32)
    (token,) = runtime.step(tokens, rows, np.zeros(prompt, np.int32), table[None], rows[-1:])
    alone, served, stopping = [], [], []
    for _ in range(RUNS + 1):
        start = perf_counter()
        stream = runtime.stream(int(token), prompt, table, (), steps)
        while not stream.ended:
            stream.read()
        alone.append((perf_counter() - start) / steps)
        stream = runtime.stream(int(token), prompt, table, (), steps)
        stream.read()
        start = perf_counter()
        stream.stop()
        stopping.append(perf_counter() - start)
        # The engine takes the prompt from its cache and the rest from the loop, with an event for every token.
        engine = Engine(runtime, tokenizer, max_draft=0)
        request = GenerateRequest(tokens.tolist(), SamplingParams(max_tokens=steps + 1, ignore_eos=True))
        engine.submit(request)
        told = 0
        while not told:
            told = sum(hasattr(event, "token") for event in engine.step())
        start = perf_counter()
        while engine.busy:
            told += sum(hasattr(event, "token") for event in engine.step())
        served.append((perf_counter() - start) / max(told - 1, 1))
    bare, full = median(alone[1:]), median(served[1:])  # the first run warms up
    report.add(f"gpu.loop.tok_s.{name}", 1 / bare, "tok/s")
    report.add(f"gpu.engine.tok_s.{name}", 1 / full, "tok/s")
    report.add(f"gpu.host.us.{name}", (full - bare) * 1e6, "µs a token", bar=HOST_MICROSECONDS, at_most=True)
    report.add(f"gpu.stop.steps.{name}", median(stopping[1:]) / bare, "steps", bar=2.0, at_most=True)


def write_tokenizer(folder: Path, vocab: int) -> None:
    """Write a tokenizer of byte-level pieces of one to three letters, one for every id, so that each id has text."""
    from itertools import product

    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = [letter for letter in letters if letter.isascii()]
    pieces = letters + ["".join(word) for size in (2, 3) for word in product(plain, repeat=size)]
    backend = Backend(models.BPE(vocab={piece: i for i, piece in enumerate(pieces[:vocab])}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": vocab - 1}), encoding="utf-8")


if __name__ == "__main__":
    options = argparse.ArgumentParser(prog="python -m fulgur.bench.gpu", description=__doc__)
    options.add_argument("--json", type=Path, metavar="FILE")
    add_arguments(options)
    arguments = options.parse_args()
    made = run(arguments)
    for line in [f"{row.name:52} {row.value:10.1f} {row.unit}" for row in made.rows] + made.notes:
        print(line, flush=True)
    if arguments.json is not None:
        made.write_json(arguments.json)
