"""Random damage to a file's header: an error that names the file, or a model; never another exception."""

import random
from collections import Counter
from pathlib import Path

import pytest

from fulgur.errors import FulgurError
from fulgur.model.random import random_model, tiny_config, write_hf_folder
from fulgur.model.weights import load

CONFIG = tiny_config("qwen3", tied=True, n_layers=1, vocab_size=48)
ROUNDS = 300


def damage(raw: bytes, header: int, rng: random.Random) -> bytes:
    """A few bytes of the header changed, or some cut out, or some doubled."""
    changed = bytearray(raw)
    at = rng.randrange(header)
    match rng.randrange(4):
        case 0:
            for _ in range(rng.randrange(1, 4)):
                changed[rng.randrange(header)] = rng.randrange(256)
        case 1:
            del changed[at : at + rng.randrange(1, 9)]
        case 2:
            changed[at:at] = changed[at : at + rng.randrange(1, 9)]
        case _:
            changed[at : at + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, b"9" * 8])
    return bytes(changed)


def check(path: Path, model: Path, header: int) -> None:
    raw, outcomes = path.read_bytes(), Counter[str]()
    for seed in range(ROUNDS):
        path.write_bytes(damage(raw, header, random.Random(seed)))
        try:
            load(model, bits=8)
            outcomes["loaded"] += 1
        except FulgurError as error:
            assert str(model) in str(error)
            outcomes["refused"] += 1
    assert outcomes["refused"] > ROUNDS / 4


def test_safetensors(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_hf_folder(folder, CONFIG, random_model(CONFIG, 0))
    path = folder / "model.safetensors"
    check(path, folder, 8 + int.from_bytes(path.read_bytes()[:8], "little"))


def test_config(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_hf_folder(folder, CONFIG, random_model(CONFIG, 0))
    path = folder / "config.json"
    check(path, folder, len(path.read_bytes()))


def test_gguf(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from fulgur.bench.weights import write_gguf

    path = tmp_path / "model.gguf"
    write_gguf(path, CONFIG, 0, 8)
    check(path, path, 1200)
