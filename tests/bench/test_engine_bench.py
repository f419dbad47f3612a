"""`fulgur bench engine` from end to end on a tiny model, and its peer's file against our own arithmetic."""

import ctypes
import json
from pathlib import Path

import numpy as np
import pytest

from fulgur.bench import comparison, engine
from fulgur.bench.peer import Peer, Settings, candidates
from fulgur.bench.shapes import SHAPES
from fulgur.bench.weights import AheadSource, write_gguf
from fulgur.errors import UsageError
from fulgur.kernels.reference import FloatModel
from fulgur.model.config import ModelConfig
from fulgur.model.gguf import GgufSource
from fulgur.model.random import random_model, tiny_config
from fulgur.ui.cli import main

TINY = tiny_config(n_layers=1, vocab_size=8192, d_ffn=128, max_context=2048)


def test_shapes_are_what_they_are_called() -> None:
    counts = {name: config.parameters / 1e6 for name, config in SHAPES.items()}
    assert counts == pytest.approx({"30M": 29.4, "60M": 61.2, "120M": 113.3, "0.5B": 494.0}, abs=0.1)


def test_candidates_cover_every_combination() -> None:
    assert len(set(candidates(2))) == 4 and {settings.threads for settings in candidates(2)} == {2}
    assert str(Settings(2, flash=True, repack=False)) == "2 threads, flash attention"


def test_whole_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fulgur.kernels.cpu._native")
    for module in (engine, comparison):
        monkeypatch.setattr(module, "SHAPES", {"60M": TINY})
    monkeypatch.setattr(engine, "QUICK", engine.Effort(rounds=1, repeat=1))
    out, plot = tmp_path / "rows.json", tmp_path / "rows.svg"
    assert (
        main(["bench", "engine", "--quick", "--no-peer", "--bits", "4", "--json", str(out), "--plot", str(plot)]) == 0
    )
    shown = capsys.readouterr().out
    rows = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    for name in (
        "engine.decode.tok_s.60M.int4",
        "engine.bandwidth_share.60M.int4",
        "engine.bandwidth_share.read.60M.int4",
        "engine.bandwidth_share.most.60M.int4",
        "engine.bandwidth_share.of_most.60M.int4",
        "engine.prefill.tok_s.60M.int4",
        "engine.verify8.ratio.60M.int4",
        "engine.edit.ratio_raw.60M.int4",
        "engine.edit.ratio_raw.most.60M.int4",
        "engine.memory.ratio",
    ):
        assert rows[name]["value"] > 0 and rows[name]["unit"]
        assert name in shown and name in plot.read_text()
    assert not any("llama" in name for name in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "7B"], "'7B' is not one of 30M"),
        (["--bits", "3"], "'3' is not one of 4, 8"),
        (["--models", ","], "choose from"),
    ],
)
def test_wrong_choices(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "engine", *arguments]) == UsageError.exit_code
    assert message in capsys.readouterr().err


def test_files_are_checked_before_the_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "engine", "--json", str(tmp_path / "no" / "rows.json")]) == 2
    assert main(["bench", "engine", "--plot", str(tmp_path / "rows.png")]) == 2
    err = capsys.readouterr().err
    assert "its folder does not exist" in err and "--plot writes SVG" in err


def test_a_long_model_gets_fewer_rounds_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        def __init__(self) -> None:
            self.model, self.bits = "60M", 4
            self.notes: list[str] = []
            self.replays: list[int] = []

        def round(self, repeat: int) -> None:
            self.replays.append(repeat)

    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(engine, "perf_counter", lambda: next(clock))
    begun: list[int] = []
    slow = Slow()
    assert engine._rounds(slow, engine.Effort(rounds=7, repeat=5), begun.append) == 3  # type: ignore[arg-type]
    assert begun == [1, 2, 3] and "3 rounds instead of 7, one takes 10 s" in slow.notes[0]
    monkeypatch.setattr(engine, "perf_counter", lambda: 0.0)
    assert engine._rounds(slow, engine.Effort(rounds=7, repeat=5), begun.append) == 7  # type: ignore[arg-type]


def test_weights_made_ahead_are_the_same() -> None:
    tensors = random_model(TINY, 3)
    with AheadSource(TINY, 3) as source:
        for name in [*tensors, *reversed(tensors)]:
            np.testing.assert_array_equal(source.tensor(name), tensors[name])


@pytest.mark.parametrize("bits", [4, 8])
def test_the_peer_gets_what_its_own_quantiser_makes(bits: int, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    write_gguf(tmp_path / "m.gguf", TINY, 3, bits)
    kind = gguf.GGMLQuantizationType["Q8_0" if bits == 8 else "Q4_0"]
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    tensor = stored["blk.0.ffn_down.weight"]
    assert tensor.tensor_type == kind
    expected = gguf.quants.quantize(random_model(TINY, 3)["model.layers.0.mlp.down_proj.weight"], kind)
    np.testing.assert_array_equal(tensor.data, expected)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_peer_gets_the_same_weights(bits: int, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    write_gguf(tmp_path / "m.gguf", TINY, 3, bits)
    source = GgufSource(tmp_path / "m.gguf")
    assert source.config.family == "qwen3" and source.config.tied
    for name, value in random_model(TINY, 3).items():
        if value.ndim == 2:
            stored = source.rows(name, np.arange(len(value)))
            assert np.abs(stored - value).max() <= np.abs(value).max() / (7 if bits == 4 else 120)
        else:
            np.testing.assert_array_equal(source.vector(name), value)


@pytest.mark.parametrize(("family", "head_dim"), [("fulgur", 32), ("qwen2", 16)])
def test_llama_cpp_computes_the_same_logits(family: str, head_dim: int, tmp_path: Path) -> None:
    """Same file, two implementations: the comparison is between equals."""
    pytest.importorskip("llama_cpp")
    config: ModelConfig = tiny_config(family, tied=True, head_dim=head_dim, max_context=256, norm_eps=1e-5)
    write_gguf(tmp_path / "m.gguf", config, 3, 8)
    peer = Peer(str(tmp_path / "m.gguf"), 256, Settings(1, flash=False, repack=False))
    peer._run(0, 40, 40)
    theirs = np.stack(
        [
            np.ctypeslib.as_array(
                ctypes.cast(peer.lib.llama_get_logits_ith(peer.context, i), ctypes.POINTER(ctypes.c_float)), (301,)
            )
            for i in range(40)
        ]
    )
    ours = FloatModel(GgufSource(tmp_path / "m.gguf")).logits(peer.tokens[:40])
    # llama.cpp rounds activations to 8 bits and keeps its cache in fp16.
    assert np.sqrt(np.mean((ours - theirs) ** 2)) < 0.03 * ours.std()
