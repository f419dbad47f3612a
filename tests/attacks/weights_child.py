"""Flips one bit after the other in the files of a model, opens it and writes a few tokens; one line a round says how it
ended. A process of its own: whatever kills it is seen by the test that started it.

    python weights_child.py MODEL TOKENIZER ROUNDS
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from fuzzing import rounds

from fulgur.engine.engine import Engine
from fulgur.engine.events import Finished
from fulgur.engine.load import kv_blocks, open_runtime
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.errors import FulgurError
from fulgur.model import checksums
from fulgur.model.weights import load
from fulgur.text.tokenizer import Tokenizer

_HEAD = 4000  # bytes at the beginning of a file that are hit as often as all others: most of what is not weights


def main(model: Path, tokenizer: Path, number: int) -> None:
    """Report `seed file ok`, or the error; a traceback ends the program."""
    folder = model if model.is_dir() else model.parent
    files = sorted(path for path in folder.iterdir() if path.is_file())
    whole = Tokenizer.from_folder(tokenizer)
    for seed, random in rounds(number):
        path = random.choice(files)
        size = path.stat().st_size
        place = random.randrange(min(size, _HEAD) if random.random() < 0.5 else size)
        print(seed, path.name, place, end=" ", flush=True)
        bit = 1 << random.randrange(8)
        _flip(path, place, bit)
        try:
            checksums.check(model)
            own = Tokenizer.from_folder(model) if model.is_dir() else whole
            _write(model, own, random)
            print("ok", flush=True)
        except FulgurError as error:
            print("refused", "and named" if str(folder) in str(error) else f"without its name: {error}", flush=True)
        finally:
            _flip(path, place, bit)


def _flip(path: Path, place: int, bit: int) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        old = os.pread(descriptor, 1, place)[0]
        os.pwrite(descriptor, bytes([old ^ bit]), place)
    finally:
        os.close(descriptor)


def _write(model: Path, tokenizer: Tokenizer, random: Random) -> None:
    weights = load(model)
    runtime = open_runtime("native", weights, kv_blocks(weights.config, 512), 1)
    engine = Engine(runtime, tokenizer)
    text = tokenizer.encode("abc") or [1]
    params = SamplingParams(max_tokens=6, temperature=random.choice([0.0, 0.8]), seed=1, logprobs=2)
    engine.submit(GenerateRequest([token % runtime.vocab_size for token in text], params))
    for _ in range(100):
        if any(isinstance(event, Finished) for event in engine.step()):
            return
    raise AssertionError("it does not end")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
