"""Model folders and GGUF files of strangers: whatever they say, opening one gives a model or an error with its name.

Every value of their JSON files and of a GGUF's metadata is replaced by every hostile one, for each family; files are
pipes, devices, huge or nested without end. A hang, a traceback or memory without bounds fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fulgur.engine.engine import Engine
from fulgur.engine.events import Finished
from fulgur.engine.load import kv_blocks, open_runtime, open_tokenizer
from fulgur.engine.params import GenerateRequest, SamplingParams
from fulgur.errors import FulgurError
from fulgur.model import checksums
from fulgur.model.family import FAMILIES
from fulgur.model.gguf_file import TYPES, GgufFile
from fulgur.model.packed_folder import save_packed
from fulgur.model.random import random_model, tiny_config, write_hf_folder
from fulgur.model.safetensors import SafetensorsFile
from fulgur.model.weights import load
from tests.engine.byte_tokenizer import VOCAB, write_tokenizer

DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
HOSTILE: list[Any] = [
    None, True, False, -1, 0, 1, 3, 1.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**63, 10**30, "", "x",
    "\ud800", "../../../etc/passwd", "\0", [], [[]], {}, {"a": 1}, [None] * 9, ["x"], [-1], [2**40], DEEP,
]  # fmt: skip


def hostile(turn: int) -> list[Any]:
    """A third of the values, another one each turn; all of them in a full run."""
    return HOSTILE if os.environ.get("FULGUR_ATTACKS") == "full" else HOSTILE[turn % 3 :: 3]


def opened(model: Path) -> bool:
    """Whether it could be opened, and then wrote something; an error must name it."""
    try:
        tokenizer = open_tokenizer(model)
        weights = load(model)
    except FulgurError as error:
        assert str(model) in str(error), error
        return False
    with contextlib.suppress(FulgurError):  # a context of one token, for one
        engine = Engine(open_runtime("native", weights, kv_blocks(weights.config, 512), 1), tokenizer)
        engine.submit(GenerateRequest([1, 2, 3], SamplingParams(max_tokens=2, seed=1)))
        assert any(isinstance(event, Finished) for _ in range(20) for event in engine.step())
    return True


def variants(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something can be replaced: every entry of every object."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from variants(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    return {**value, path[0]: replaced(value[path[0]], path[1:], by)}


@pytest.fixture(scope="module")
def limited() -> Iterator[None]:
    """Memory without bounds fails here instead of taking the machine along."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_value_of_a_config(family: str, tmp_path: Path, limited: None) -> None:
    folder = tmp_path / "model"
    config = tiny_config(family, vocab_size=VOCAB)
    write_hf_folder(folder, config, random_model(config, 0))
    write_tokenizer(folder)
    assert opened(folder)
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        file = folder / name
        whole = json.loads(file.read_text()) if file.exists() else {"eos_token_id": 1, "bos_token_id": 1}
        whole = {"chat_template": "x", "added_tokens_decoder": {}, **whole} if name.startswith("tokenizer") else whole
        for turn, place in enumerate(variants(whole), sorted(FAMILIES).index(family)):
            for value in hostile(turn):
                file.write_text(json.dumps(replaced(whole, place, value)))
                opened(folder)
        file.write_text(json.dumps(whole))
    assert opened(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none(value: float, tmp_path: Path) -> None:
    """A row of logits without a largest one gives some token of the vocabulary, never one behind its end."""
    config = tiny_config("qwen3", vocab_size=VOCAB)
    assert VOCAB % 16, "the last tile has rows that stand for no token"
    for name in ("model.norm.weight", "model.layers.0.input_layernorm.weight"):
        tensors = random_model(config, 0)
        tensors[name] = np.full_like(tensors[name], value)
        write_hf_folder(tmp_path / name, config, tensors)
        write_tokenizer(tmp_path / name)
        assert opened(tmp_path / name)


def chained(folder: Path) -> dict[str, Callable[[Path], None]]:
    """What can stand where a file should be."""

    def sparse(path: Path) -> None:
        path.write_bytes(b"")
        os.truncate(path, 200 << 30)

    def huge_header(path: Path) -> None:
        path.write_bytes((100 << 30).to_bytes(8, "little"))
        os.truncate(path, 200 << 30)

    def gguf_of_zeros(path: Path) -> None:
        """One key whose value is an array of 40 billion numbers, all there."""
        head = (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 4, 40 << 30)
        )
        path.write_bytes(head)
        os.truncate(path, 200 << 30)

    return {
        "pipe": os.mkfifo,
        "folder": Path.mkdir,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "terminal": lambda path: path.symlink_to("/dev/tty"),
        "loop": lambda path: path.symlink_to(path),
        "empty": Path.touch,
        "sparse": sparse,
        "huge header": huge_header,
        "array without end": gguf_of_zeros,
        "nested": lambda path: path.write_text("[" * 200_000),  # type: ignore[dict-item,func-returns-value]
        "nested header": lambda path: path.write_bytes((200_000).to_bytes(8, "little") + b"[" * 200_000),  # type: ignore[dict-item,func-returns-value]
    }


@pytest.mark.parametrize("kind", chained(Path()))
def test_something_else_than_a_file(kind: str, tmp_path: Path, limited: None) -> None:
    folder = tmp_path / "model"
    config = tiny_config("qwen3", vocab_size=VOCAB)
    write_hf_folder(folder, config, random_model(config, 0), shards=2)
    write_tokenizer(folder)
    checksums.write(folder, [path.name for path in folder.iterdir()])
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("x")
    assert opened(folder)
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        file.unlink()
        chained(folder)[kind](file)
        assert not opened(folder) or file.name in ("checksums.json", "chat_template.jinja"), file.name
        with pytest.raises(FulgurError, match=str(folder)):
            checksums.check(folder)
            assert file.name in ("tokenizer_config.json", "chat_template.jinja")
            raise FulgurError(str(folder))
        file.rmdir() if kind == "folder" else file.unlink()
        file.write_bytes(whole)
    single = tmp_path / "model.gguf"
    chained(folder)[kind](single)
    assert not opened(single)


@pytest.mark.parametrize(
    "header",
    [
        [], "x", 5, None, {"a": 1}, {"a": []}, {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
        *({"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}
          for dtype in ("F32", [], {}, None, 7)
          for shape in ([1], [-1], ["a"], "1", [1.0], [True], {}, [2**70], [[1]], [0])
          for offsets in ([0, 4], [-8, -4], [4, 0], ["0", "4"], [0.0, 4.0], [2**70, 2**70 + 4], "04", None)),
    ],
)  # fmt: skip
def test_a_header_of_safetensors(header: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))
    try:
        file = SafetensorsFile(path)
        for name in file.entries:
            file.array(name)
    except FulgurError as error:
        assert str(path) in str(error)


def gguf_value(value: Any) -> bytes:
    """A value of metadata with its type before it."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int() if -(2**63) <= value < 2**64:
            return struct.pack("<IQ", 10, value) if value >= 0 else struct.pack("<Iq", 11, value)
        case float():
            return struct.pack("<Id", 12, value)
        case list():
            kinds = [gguf_value(each) for each in value]
            return (
                struct.pack("<I", 9)
                + (kinds[0][:4] if kinds else struct.pack("<I", 4))
                + struct.pack("<Q", len(value))
                + b"".join(each[4:] for each in kinds)
            )
        case _:
            raw = str(value).encode("utf-8", "surrogatepass")
            return struct.pack("<IQ", 8, len(raw)) + raw


def write_metadata(source: GgufFile, raw: bytes, metadata: dict[str, Any], path: Path) -> None:
    """The same tensors with other metadata."""
    first = min(tensor.start for tensor in source.tensors.values())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(source.tensors), len(metadata))
    for key, value in metadata.items():
        head += struct.pack("<Q", len(key)) + key.encode() + gguf_value(value)
    numbers = {kind: number for number, kind in TYPES.items()}
    for name, tensor in source.tensors.items():
        head += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(tensor.shape))
        head += b"".join(struct.pack("<Q", size) for size in reversed(tensor.shape))
        head += struct.pack("<IQ", numbers[tensor.type], tensor.start - first)
    path.write_bytes(head + bytes(-len(head) % 32) + raw[first:])


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "ministral3", "qwen3_5", "qwen3_next-mtp"])
def test_every_value_of_a_gguf(family: str, tmp_path: Path, limited: None) -> None:
    pytest.importorskip("gguf")
    from tests.model.test_gguf_families import CASES, converted, write

    whole, path = tmp_path / "whole.gguf", tmp_path / "model.gguf"
    config = CASES[family]
    write(whole, config, converted(config, random_model(config, 0)))
    file, raw = GgufFile(whole), whole.read_bytes()
    words = [chr(256 + number) for number in range(config.vocab_size)]
    vocabulary = {
        "model": "gpt2", "pre": "qwen2", "tokens": words, "token_type": [1] * len(words), "merges": [],
        "eos_token_id": 2, "bos_token_id": 1, "add_bos_token": True,
    }  # fmt: skip
    metadata = {**file.metadata, **{f"tokenizer.ggml.{key}": value for key, value in vocabulary.items()}}
    metadata |= {"general.alignment": 32, "split.count": 1, "tokenizer.chat_template": "x"}
    write_metadata(file, raw, metadata, path)
    assert opened(path)
    for turn, key in enumerate(metadata):
        for value in [*hostile(turn), ["a"], [1, 2], words[:5]]:
            if isinstance(value, dict) or value is None or value == 10**30:  # GGUF has no such values
                continue
            write_metadata(file, raw, {**metadata, key: value}, path)
            opened(path)


def test_a_packed_folder_whose_config_names_more_than_there_is(tmp_path: Path, limited: None) -> None:
    folder, whole = tmp_path / "packed", tmp_path / "whole"
    config = tiny_config("qwen3", vocab_size=VOCAB, d_model=64)
    write_hf_folder(whole, config, random_model(config, 0))
    write_tokenizer(whole)
    save_packed(load(whole, bits=4), folder, companions=whole)
    assert opened(folder)
    file = folder / "config.json"
    given = json.loads(file.read_text())
    for turn, place in enumerate(variants(given)):
        for value in hostile(turn):
            file.write_text(json.dumps(replaced(given, place, value)))
            opened(folder)
